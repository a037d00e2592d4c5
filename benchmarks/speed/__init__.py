"""Benchmarks of speed, each beside a named peer or limit."""
