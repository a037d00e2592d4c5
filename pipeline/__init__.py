"""PriMORL: offline reinforcement learning with trajectory-level differential privacy."""

__version__ = "0.1.0"
