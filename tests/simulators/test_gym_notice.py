import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_run_prints_no_notice_of_gym_and_other_warnings_as_ever() -> None:
    pytest.importorskip("gym_notices")
    script = "import warnings, primorl.trajectories.sources.replay; warnings.warn('seen')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Gym has been unmaintained" not in done.stderr
    assert "UserWarning: seen" in done.stderr
