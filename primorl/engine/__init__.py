"""The private engine: cohorts, local updates, rounds, checkpoints, several processes."""
