"""A dataset on disk: its schema, Parquet parts, stores for training, and the manifest of a
partition.
"""
