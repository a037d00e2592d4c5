"""Paths, files, DVC, errors, progress. Imports no other room."""
