"""Paid work on private rows: what it is, what it will be charged, what its settings are fitted to."""
