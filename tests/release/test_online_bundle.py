"""The bundle of a policy that learned from users: nothing else leaves, and no edit of it passes the
check.
"""

import json
import shutil
from pathlib import Path

import pytest

from pipeline import online
from primorl.base.errors import PipelineError
from primorl.base.paths import ONLINE_METRICS
from primorl.config.params import load
from primorl.evaluate.summary import OnlineSummary
from primorl.policy.loaded import load_policy
from primorl.release.build import release
from primorl.release.bundle import verify
from primorl.release.contents import NEEDED, ONLINE
from tests.pipeline.test_online import write_offline
from tests.pipeline.tiny_policy import RememberingRun
from tests.projects import project_settings, write_settings
from tests.release.bundles import (
    Change,
    accepted,
    at,
    changed_leaves,
    each_refused,
    relist,
    removed_keys,
)


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
        release(Path("out"), params, void_ok=False, policy="models/online")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def test_it_holds_policy_statement_and_cards_alone(project: Path) -> None:
    found = {
        path.relative_to("out").as_posix() for path in Path("out").rglob("*") if path.is_file()
    }
    assert found == NEEDED | {ONLINE, "MANIFEST.json"}
    stated = verify(Path("out"), void_ok=False)
    assert stated.sound
    assert load_policy("out/policy").act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert "seconds" not in json.loads(Path("out/online.json").read_text())
    card = Path("out/card.md").read_text(encoding="utf-8")
    assert "joint differential privacy" in card
    assert "somebody who is both" in card


STATEMENT, JSON = "policy/privacy.json", ("policy/privacy.json", "policy/config.json", ONLINE)
EDITS: list[tuple[Change, str]] = [
    (at(STATEMENT, "mechanisms.1.epsilon", 0.1), "mechanisms.1: epsilon"),
    (at(STATEMENT, "mechanisms.1.sampling_probability", 0.01), "not sampled"),
    (at(STATEMENT, "online.releases", 3), "rounds are not releases times appearances"),
    (at(STATEMENT, "online.algorithm", "dp-rebel"), "not those of the algorithm"),
    (
        at(STATEMENT, "online", lambda own: own | {"cohort": 7, "cohorts": 1}),
        "larger than the number of users",
    ),
    (lambda folder: (folder / "notes.txt").touch(), "does not belong in a bundle"),
    (
        lambda folder: shutil.copyfile(OFFLINE, folder / "policy/policy.safetensors"),
        "online.json: policy_sha256: contradicts",
    ),
]
OFFLINE = "models/policy/policy.safetensors"
# The bundle has no ledger's statement: only its maker's signature tells.
NEEDS_A_SIGNATURE = {
    *(f"{STATEMENT}: {key}" for key in ("dataset_fingerprint", "mechanisms", "spent_on_dataset")),
    *(f"policy/config.json: {key}" for key in ("discrete_actions", "epochs", "policy_sha256")),
    f"{ONLINE}: return_before_ci95",
}


@pytest.mark.usefixtures("accounted_once")
def test_an_edit_is_noticed_and_another_policy_or_file(project: Path, tmp_path: Path) -> None:
    """The hashes are listed anew, as a forger would."""
    edits = [*changed_leaves(Path("out"), JSON), *removed_keys(Path("out"), JSON)]
    assert len(edits) > 100
    found = accepted(Path("out"), tmp_path, edits, relist)
    assert {": ".join(name.split(": ")[:2]) for name in found} == NEEDS_A_SIGNATURE
    each_refused(Path("out"), tmp_path, EDITS)


def test_another_policy_than_the_ledger_knows_is_not_released_and_nothing_where_nobody_was_met(
    project: Path,
) -> None:
    kept = Path("models/online/policy.safetensors").read_bytes()
    shutil.copyfile("models/policy/policy.safetensors", "models/online/policy.safetensors")
    with pytest.raises(PipelineError, match="models/online: not what charge"):
        release(Path("new"), load(), void_ok=False, policy="models/online")
    Path("models/online/policy.safetensors").write_bytes(kept)
    with pytest.raises(PipelineError, match="something else"):
        release(Path("models"), load(), void_ok=False, policy="models/online")
    OnlineSummary(met=False).write(ONLINE_METRICS)
    with pytest.raises(PipelineError, match=r"metrics/online\.json: nobody was met"):
        release(Path("new"), load(), void_ok=False, policy="models/online")
    assert not Path("new").exists()
