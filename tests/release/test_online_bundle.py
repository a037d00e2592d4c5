"""The bundle of a policy that learned from users: nothing else leaves, and no edit of it passes the check."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import online
from primorl.config.params import load
from primorl.evaluation.summary import OnlineSummary
from primorl.policy.loaded import load_policy
from primorl.project.errors import PipelineError
from primorl.project.paths import ONLINE_METRICS
from primorl.release.online_bundle import FILES, check_online, release_online
from tests.pipeline.test_online import write_offline
from tests.pipeline.tiny_policy import RememberingRun
from tests.projects import project_settings, write_settings
from tests.release.bundles import inside_of, relist


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which six users improved an offline policy, and the bundle ``out`` of it."""
    folder = tmp_path_factory.mktemp("online")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.delenv("DVC_ROOT", raising=False)
        content = project_settings()
        content["chosen"]["environment"] = "CartPole-v1"
        content["evaluation"] |= {"episodes": 2, "epoch_episodes": 2}
        content["online"] |= {"users": 6, "cohort": 3, "steps": 10}
        write_offline(1e-5)
        params = write_settings(content)
        online.body(params, RememberingRun())  # type: ignore[arg-type]
        release_online(Path("out"), params, void_ok=False)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_it_holds_policy_statement_and_cards_alone(project: Path) -> None:
    found = {path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()}
    assert found == FILES | {"MANIFEST.json"}
    stated = check_online(Path("out"), void_ok=False)
    assert stated.sound
    assert load_policy("out/policy").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert "seconds" not in json.loads(Path("out/online.json").read_text())


STATEMENT, SUMMARY = "policy/privacy.json", "online.json"
EDITS: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    (STATEMENT, lambda c: c.update(epsilon=0.1), "epsilon"),
    (STATEMENT, lambda c: c["mechanisms"][-1].update(epsilon=0.1), "mechanisms.1: epsilon"),
    (STATEMENT, lambda c: c["mechanisms"].pop(0), "event: not that of the mechanisms"),
    (STATEMENT, lambda c: c["online"].update(releases=3), "rounds are not releases times appearances"),
    (STATEMENT, lambda c: c["online"].update(users=7), "users are not the units"),
    (STATEMENT, lambda c: c.update(void=["a reason"]), "void: a reason"),
    (STATEMENT, lambda c: c["mechanisms"][-1].update(sampling_probability=0.01), "not sampled"),
    (STATEMENT, lambda c: c["online"].update(algorithm="dp-rebel"), "not those of the algorithm"),
    (STATEMENT, lambda c: c["online"].update(cohorts=30), "in more of them than appearances"),
    (STATEMENT, lambda c: c["online"].update(cohort=7, cohorts=1), "larger than the number of users"),
    (STATEMENT, lambda c: c.update(units=10**6), "users are not the units"),
    (STATEMENT, lambda c: c.update(delta=0.9), "delta"),
    (STATEMENT, lambda c: c["accountant"].update(name="Mine"), "accountant"),
    (STATEMENT, lambda c: c.pop("charge"), "charge"),
    (STATEMENT, lambda c: c.pop("spent_on_dataset"), "spent_on_dataset"),
    (SUMMARY, lambda c: c.update(epsilon=0.1), "epsilon: contradicts"),
    (SUMMARY, lambda c: c.update(private=False), "private: contradicts"),
    (SUMMARY, lambda c: c.update(return_mean=500.0), "not the card that the figures"),
    ("policy/config.json", lambda c: c.update(policy="models/policy"), "allowed is 'models/online'"),
]


def test_an_edit_is_noticed_and_another_policy_or_file(project: Path, tmp_path: Path) -> None:
    """The hashes are listed anew, as a forger would."""
    for number, (name, change, said) in enumerate(EDITS):
        folder = shutil.copytree("out", tmp_path / str(number))
        inside_of(name, change)(folder)
        relist(folder)
        with pytest.raises(PipelineError, match=said):
            check_online(folder, void_ok=False)
    (Path("out") / "notes.txt").write_text("patient 17")
    with pytest.raises(PipelineError, match="does not belong in a bundle"):
        check_online(Path("out"), void_ok=False)
    (Path("out") / "notes.txt").unlink()
    shutil.copyfile("models/policy/policy.safetensors", "out/policy/policy.safetensors")
    with pytest.raises(PipelineError, match="damaged or exchanged"):
        check_online(Path("out"), void_ok=False)


def test_another_policy_than_the_ledger_knows_is_not_released(project: Path) -> None:
    shutil.copyfile("models/policy/policy.safetensors", "models/online/policy.safetensors")
    with pytest.raises(PipelineError, match="models/online: not what charge"):
        release_online(Path("new"), load(), void_ok=False)


def test_nothing_is_made_where_nobody_was_met_or_something_is_in_the_way(project: Path) -> None:
    with pytest.raises(PipelineError, match="in the way"):
        release_online(Path("models"), load(), void_ok=False)
    OnlineSummary(met=False).write(ONLINE_METRICS)
    with pytest.raises(PipelineError, match=r"metrics/online\.json: nobody was met"):
        release_online(Path("new"), load(), void_ok=False)
    assert not Path("new").exists()
