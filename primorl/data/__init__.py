"""Sources, schema, Parquet parts, the split by privacy unit, identity of units."""
