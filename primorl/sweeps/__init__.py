"""Sweeps: many runs of the pipeline on the same partitions, each in a folder of its own."""
