"""The private engine: set-up, local updates, rounds, checkpoints, several processes."""
