"""At home: a statement is released only with the very files that its charge made, and what follows from them."""

import hashlib
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from primorl.config import params
from primorl.privacy.ledger.ledger import Ledger
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json, write_json
from primorl.release import bundle
from primorl.setup.accounts import project_ledger
from tests.release.bundles import edit, edit_statements, made
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params

MODEL, POLICY, SUMMARY = Path("models/dynamics"), Path("models/policy"), Path("metrics/summary.json")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Projects with the same data and sizes: one without privacy, and one that drew other noise."""
    found = {}
    for name, raw in (("without privacy", tiny_params("no_privacy")), ("another run", tiny_params())):
        found[name] = tmp_path_factory.mktemp("other") / "project"
        run_stages(found[name], raw, EPISODES)
    return found


def model_of(other: Path) -> None:
    shutil.copyfile(other / MODEL / "model.safetensors", MODEL / "model.safetensors")


def policy_of(other: Path) -> None:
    """And what a forger, or a repeated `evaluate`, does to the summary."""
    shutil.copyfile(other / POLICY / "policy.safetensors", POLICY / "policy.safetensors")
    edit(SUMMARY, policy_sha256=file_sha256(POLICY / "policy.safetensors"))


@pytest.mark.parametrize("other", ["without privacy", "another run"])
@pytest.mark.parametrize(
    ("lay", "says"),
    [
        (model_of, "models/dynamics/model.safetensors: found SHA-256"),
        (policy_of, "models/policy/config.json: policy_sha256: found SHA-256"),
    ],
)
@pytest.mark.usefixtures("project")
def test_files_of_another_run_are_not_released_under_this_statement(
    others: dict[str, Path], other: str, lay: Callable[[Path], None], says: str
) -> None:
    lay(others[other])
    refused(says)


@pytest.mark.usefixtures("project")
def test_a_whole_policy_of_another_model_is_refused(others: dict[str, Path]) -> None:
    """With this model's statement beside it, and all that a policy says of itself."""
    shutil.rmtree(POLICY)
    shutil.copytree(others["another run"] / POLICY, POLICY)
    shutil.copyfile(MODEL / "privacy.json", POLICY / "privacy.json")
    edit(SUMMARY, policy_sha256=file_sha256(POLICY / "policy.safetensors"))
    refused("models/policy/config.json: model_sha256: found SHA-256")


def one_weight() -> None:
    path = MODEL / "model.safetensors"
    tensors = load_file(path)
    tensors["layers.0.weight"][0, 0, 0] += 0.5
    save_file(tensors, path)


def one_policy_weight() -> None:
    path = POLICY / "policy.safetensors"
    tensors = load_file(path)
    tensors["layers.0.weight"][0, 0, 0] += 0.5
    save_file(tensors, path)
    edit(SUMMARY, policy_sha256=file_sha256(path))


def everywhere(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        edit_statements(**changes)
        edit(SUMMARY, **{key: value for key, value in changes.items() if key in read_json(SUMMARY)})

    return change


def other_engine() -> None:
    edit(MODEL / "config.json", engine_version=1)


def older_summary() -> None:
    edit(SUMMARY, model_sha256="0" * 64)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (one_weight, "models/dynamics/model.safetensors: found SHA-256"),
        (one_policy_weight, "models/policy/config.json: policy_sha256: found SHA-256"),
        (everywhere(unit="person"), "models/dynamics/privacy.json: unit: found 'person', allowed is 'trajectory'"),
        (everywhere(units=30_000), "models/dynamics/privacy.json: units: found 30000, allowed is"),
        (everywhere(public_units=1), "models/dynamics/privacy.json: public_units: found 1, allowed is"),
        (everywhere(public_assumptions=[]), "models/dynamics/privacy.json: found SHA-256"),
        (everywhere(clipping_norm=0.01), "models/dynamics/privacy.json: found SHA-256"),
        (everywhere(settings_origin={"privacy.rounds": "x"}), "models/dynamics/privacy.json: found SHA-256"),
        (other_engine, "models/dynamics/config.json: found SHA-256"),
        (older_summary, "metrics/summary.json: model_sha256: found SHA-256 000000000000"),
    ],
)
@pytest.mark.usefixtures("project")
def test_edits_that_agree_with_each_other_are_refused(damage: Callable[[], None], says: str) -> None:
    """Every copy is edited alike, so only the ledger and the manifest of the data can tell."""
    damage()
    refused(says)


@pytest.mark.usefixtures("project")
def test_an_interrupted_checkout_is_refused(tmp_path: Path) -> None:
    """The charge is restored with a newer statement; then one file of the older commit comes back."""
    older = shutil.copytree(MODEL, tmp_path / "older")
    renew_statement()
    for name in ("config.json", "privacy.json"):
        with_older = MODEL / name
        newer = with_older.read_bytes()
        shutil.copyfile(older / name, with_older)
        if with_older.read_bytes() != newer:
            refused("models/")
        with_older.write_bytes(newer)
    made()


def renew_statement() -> None:
    """What restoring a finished model writes once other runs were charged: its statement with a larger account."""
    charge = read_json(MODEL / "privacy.json")["charge"]
    everywhere(settings_origin={"privacy.rounds": "datasets/x.yaml"})()
    with closing(project_ledger(params.load(Path("params.yaml")))) as ledger:
        ledger.commit(charge, digests())
        ledger.commit(charge, digests())  # twice has no further effect
        assert len(ledger.charges()[0].made) == 2


def digests() -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in MODEL.iterdir()}


@pytest.mark.usefixtures("project")
def test_both_statements_of_a_restored_model_may_leave(tmp_path: Path) -> None:
    """Each with its own files: git may check out the older one."""
    older = shutil.copytree("models", tmp_path / "older"), shutil.copy(SUMMARY, tmp_path)
    renew_statement()
    bundle.check(made(), void_ok=False)
    shutil.copytree(older[0], "models", dirs_exist_ok=True)
    shutil.copy(older[1], SUMMARY)
    bundle.check(made(), void_ok=False)


@pytest.mark.usefixtures("project")
def test_a_charge_makes_one_draw_only() -> None:
    """The ledger takes no second model under one charge, whatever wrote it."""
    charge = read_json(MODEL / "privacy.json")["charge"]
    one_weight()
    with closing(project_ledger(params.load(Path("params.yaml")))) as ledger:
        with pytest.raises(PipelineError, match=rf"charge {charge}: model.safetensors: found SHA-256") as wrong:
            ledger.commit(charge, digests())
        assert "\n" not in str(wrong.value)
        assert len(ledger.charges()[0].made) == 1


def test_a_charge_of_an_earlier_version_is_read_and_its_model_made_again_for_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit record has no digests: refused until `train_model` has restored the model; nothing more is spent."""
    from pipeline import evaluate, optimize_policy, train_model
    from tests.pipeline.tiny_policy import RememberingRun

    commit = Ledger.commit
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "commit", lambda self, charge, made=None: commit(self, charge))
        chosen = run_stages(tmp_path, tiny_params(), EPISODES)
    with inside(tmp_path):
        refused("the ledger has no digest of what it made")
        weights = (MODEL / "model.safetensors").read_bytes()
        loss = read_json(MODEL / "config.json")["public_loss"]
        with monkeypatch.context() as patched:
            patched.setattr("primorl.dynamics.config.PublicLosses.diverged", False)
            for stage in (train_model, optimize_policy, evaluate):
                run = RememberingRun()
                run.pipeline = RememberingRun()  # type: ignore[attr-defined]
                stage.body(chosen, run)  # type: ignore[arg-type]
        assert (MODEL / "model.safetensors").read_bytes() == weights
        with closing(project_ledger(chosen)) as ledger:
            assert [charge.state for charge in ledger.charges()] == ["committed"]
            assert [len(charge.made) for charge in ledger.charges()] == [1]
        # The tiny model is worse than a constant, and says so now that nothing hides it.
        assert read_json(MODEL / "config.json")["public_loss"] != loss
        refused("the model is no better than a constant prediction")


@pytest.mark.usefixtures("project")
def test_the_bundle_carries_the_digests_of_its_own_charge_alone() -> None:
    ledger = read_json(made() / "ledger-statement.json")
    assert [set(record.get("made", ())) for record in ledger["records"]] == [
        {"model.safetensors", "config.json", "privacy.json"}
    ]
    assert ledger["records"][0]["made"] == digests()
    assert read_json(POLICY / "config.json")["model_sha256"] == digests()["model.safetensors"]
    assert read_json(SUMMARY)["model_sha256"] == digests()["model.safetensors"]


@pytest.mark.usefixtures("project")
def test_a_summary_of_an_earlier_version_says_how_to_make_it_again() -> None:
    summary = read_json(SUMMARY)
    del summary["model_sha256"]
    write_json(SUMMARY, summary)
    refused("metrics/summary.json: model_sha256: missing, as an earlier version wrote it; `dvc repro -f")


def refused(says: str) -> None:
    with pytest.raises(PipelineError, match=re.escape(says)) as wrong:
        made()
    assert "\n" not in str(wrong.value)
    assert not Path("out").exists()
