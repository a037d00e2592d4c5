"""The environment below everything: errors, files, records, paths, DVC, processes, reports."""
