"""Synapse's replication streams: announcing our rows, and following those of others."""
