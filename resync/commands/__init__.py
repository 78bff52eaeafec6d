"""The commands of `resync`, one module each; `resync.cli` reads the command line and calls them."""
