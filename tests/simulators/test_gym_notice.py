import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("module", "shown"), [("primorl.trajectories.sources.replay", False), ("stable_baselines3", True)]
)
def test_the_default_run_prints_no_notice_of_gym(module: str, shown: bool) -> None:
    """Only the notice is gone: a warning of the same process is shown. The twin imports Stable-Baselines3 alone."""
    pytest.importorskip("gym_notices")
    script = f"import warnings, {module}; warnings.warn('seen')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("Gym has been unmaintained" in done.stderr) is shown
    assert "UserWarning: seen" in done.stderr
