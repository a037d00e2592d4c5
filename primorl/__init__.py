"""PriMORL: offline reinforcement learning with trajectory-level differential privacy."""

import os

__version__ = "0.1.0"

# Before torch is loaded: threads that wait for each other shall give the core back soon. By default they spin for
# milliseconds, which gains nothing on an idle machine and multiplies the time where others want the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
