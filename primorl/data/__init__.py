"""Sources, schema, Parquet files, the split by privacy unit, identity of units."""
