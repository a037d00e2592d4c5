"""The ledger: charges of all runs on private data."""
