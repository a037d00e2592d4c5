"""What tests and their stages agree on."""

from pathlib import Path

RAN, HOLD = Path("ran"), Path("hold")
"""Files in the project: which stages ran, and one that seeds 1 and 13 wait for to go."""
BAD_SEED = 13
