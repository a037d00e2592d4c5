"""Many runs of the pipeline on the same partitions."""
