"""The report of a run: one page for people who decide about a policy."""
