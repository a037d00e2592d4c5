"""Who is in a dataset: fingerprint, membership, duplicates, withdrawal."""
