"""What a dataset is: sources, validation, the Parquet parts, the split by privacy unit, the store."""
