"""The plan: sampling, clipping, noise, queries."""
