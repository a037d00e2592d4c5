"""docs/own-data.md and examples/own_log.ipynb lead from an empty folder and the wheel to a released
policy.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from docs.tools.notebooks import script
from tests.projects import ROOT
from tests.wheels import build, environment

COMMANDS = "\n".join(
    re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs/own-data.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
)
PERSON = {
    f"GIT_{role}_{what}": "test@localhost"
    for role in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


@pytest.mark.timeout(900)
def test_the_commands_of_the_page_lead_to_a_released_policy(tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    shell = environment(build(tmp_path / "wheel", "--wheel"), tmp_path / "environment") | PERSON
    place = tmp_path / "empty"
    place.mkdir()
    found = subprocess.run(
        ["python", "-c", "import primorl; print(primorl.__file__)"],
        cwd=place,
        env=shell,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(found.stdout.strip()).is_relative_to(tmp_path), (
        "the wheel is used, and not the repository"
    )
    done = subprocess.run(
        ["bash", "-euc", COMMANDS], cwd=place, env=shell, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Data and pipelines are up to date." in done.stdout, "the second run trains nothing"
    project = place / "project"
    statement = json.loads((project / "models/policy/privacy.json").read_text(encoding="utf-8"))
    assert statement["private"] is True
    assert statement["unit"] == "patient"
    assert [part["what"] for part in statement["mechanisms"]] == [
        "models/dynamics",
        "models/behaviour",
    ]
    summary = json.loads((project / "metrics/summary.json").read_text(encoding="utf-8"))
    assert summary["return_mean"] is None, "nothing was measured without a simulator"
    assert isinstance(summary["model_value"], float)
    model = json.loads((project / "models/dynamics/privacy.json").read_text(encoding="utf-8"))
    assert model["epsilon"] < summary["epsilon"] == statement["epsilon"], (
        "the policy's ε is of model and clone"
    )
    assert (place / "out/policy/policy.safetensors").exists()
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=project, capture_output=True, text=True, check=True
    ).stdout
    assert not re.search(r"\.csv$|\.parquet$", tracked, re.M), "git has no row"
    notebook = ["python", "-c", script(ROOT / "examples/own_log.ipynb")]
    done = subprocess.run(notebook, cwd=place, env=shell, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    again = re.findall(r"Running stage '(\w+)'", done.stdout)
    assert again == ["report"], (
        "it has the page's settings, so nothing is trained twice; the card was declared since"
    )
