"""Large rooms on Spark: verification and state resolution in batches. Optional: extra `spark`."""
