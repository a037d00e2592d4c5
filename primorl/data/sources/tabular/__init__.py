"""Logs in Parquet or CSV."""
