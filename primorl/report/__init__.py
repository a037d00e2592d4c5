"""The report of a run: one self-contained page for people who decide about a policy."""
