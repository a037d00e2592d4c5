"""What every run spends on private data."""
