"""Errors, atomic files, records, paths, DVC, processes, progress."""
