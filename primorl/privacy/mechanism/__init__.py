"""The mechanism: sampling, clipping, noise, queries."""
