"""`params.yaml` and `datasets/<name>.yaml` as typed settings, checked once."""
