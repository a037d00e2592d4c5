"""What tests and their stages agree on."""

from pathlib import Path

RAN, HOLD = Path("ran"), Path("hold")
"""Files in the project: which stages ran, and one that seed 1 waits for to go."""
BAD_SEED = 13
