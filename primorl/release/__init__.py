"""The bundle of files that may leave: making it, checking it, its card."""
