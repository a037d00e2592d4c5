"""PriMORL: offline reinforcement learning with trajectory-level differential privacy."""

import os

__version__ = "0.1.0"

# OpenMP reads these when torch is loaded. Threads that wait for each other spin for a fraction of a millisecond and
# then give the core back. Longer spinning (the default) gains nothing on an idle machine and multiplies the time on a
# busy one; without any, two threads are slower than one.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # GNU's OpenMP, in torch's wheels for Linux: rounds of the loop
os.environ.setdefault("KMP_BLOCKTIME", "1")  # LLVM's and Intel's, in torch for macOS and from conda: milliseconds
