"""Attacks on what is released: how well they do, and the ε that a claim cannot be below."""
