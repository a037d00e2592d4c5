"""A dataset on disk: its schema, Parquet files, stores for training, and the manifest of a
partition.
"""
