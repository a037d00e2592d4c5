"""Paths, files, DVC, restoration, errors, progress. Imports no other room."""
