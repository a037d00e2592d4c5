"""The typed view of ``params.yaml`` and of a dataset, checked once."""
