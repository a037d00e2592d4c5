"""The bundle that may leave: its files, and what is refused at home."""

import hashlib
import json
import pickle
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch
from dp_accounting import dp_event
from safetensors.torch import load_file

import primorl
from primorl.commands import main as cli
from primorl.config import params
from primorl.privacy.ledger.ledger import Request, Version
from primorl.project.errors import PipelineError
from primorl.project.files import read_json
from primorl.release import bundle
from primorl.release.contents import FILES, LEDGER, MANIFEST
from primorl.setup.accounts import project_ledger
from tests.release.bundles import TEXTS, edit, edit_statements, edit_tensors, made
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params
from tests.trajectories.builders import snapshot


def test_a_bundle_is_these_files_and_checks(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing hidden beside them: no time of a file tells when training ended, no path tells where."""
    assert cli.main(["release", "out"]) == 0
    assert set(snapshot(Path("out"))) == FILES | {MANIFEST}
    assert {path.stat().st_mtime for path in (Path("out"), *Path("out").rglob("*"))} == {315532800}
    assert all(str(project) not in Path("out", name).read_text(encoding="utf-8") for name in TEXTS)
    assert cli.main(["release", "--check", "out"]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(r"out: made and checked; (ε = .* per trajectory)\nout: sound; \1\nnot checked: .*\n", said)


def test_what_leaves_is_what_the_stages_wrote(released: Path, trained: Path) -> None:
    for name in (
        "dynamics/model.safetensors",
        "dynamics/config.json",
        "policy/policy.safetensors",
        "policy/config.json",
    ):
        assert (released / name).read_bytes() == (trained / "models" / name).read_bytes()
    statement = read_json(released / "policy/privacy.json")
    assert f"| ε, exactly | {json.dumps(statement['epsilon'])} |" in (released / "card.md").read_text(encoding="utf-8")


def test_the_released_policy_knows_its_columns_and_their_public_range(released: Path) -> None:
    """From the data through the model; the card names columns that have names of their own."""
    policy = primorl.load_policy(released / "policy")
    bounds = primorl.load_model(released / "dynamics").bounds
    assert policy.saved.observation_range is not None
    for found, expected in zip(
        policy.saved.observation_range, (bounds.observation_low, bounds.observation_high), strict=True
    ):
        assert found.tolist() == expected.tolist()
    assert (len(policy.observation_names), len(policy.action_names)) == (3, 1)
    with pytest.raises(ValueError, match="lies far outside the public range"):
        policy.act([1e6, 0.0, 0.0])
    statement = read_json(released / "policy/privacy.json")
    assert f"Not protected: {statement['public_units']} traject" in (released / "card.md").read_text(encoding="utf-8")


def test_of_several_seeds_the_first_ones_policy_leaves_alone(tmp_path: Path) -> None:
    """The others' folders stay at home; the bundle says which seeds there were, and the card that it is the first."""
    raw = tiny_params()
    raw["policy"]["seeds"] = [3, 1]
    run_stages(tmp_path / "project", raw, EPISODES)
    with inside(tmp_path / "project"):
        assert (Path("models/policy/seeds/1") / "policy.safetensors").exists()
        bundle.check(made(), void_ok=False)
        assert {file.relative_to("out").as_posix() for file in Path("out").rglob("*") if file.is_file()} == {
            *FILES,
            MANIFEST,
        }
        assert read_json(Path("out/policy/config.json"))["seeds"] == [3, 1]
        first = Path("models/policy/policy.safetensors").read_bytes()
        assert Path("out/policy/policy.safetensors").read_bytes() == first
        assert "first of 2 trained alike" in Path("out/card.md").read_text(encoding="utf-8")
        own = read_json(Path("metrics/summary.json"))["by_seed"][0]
        assert read_json(Path("out/evaluation.json"))["return_mean"] == own["return_mean"]
        assert f": {own['return_mean']:.4g}, 95% interval" in Path("out/card.md").read_text(encoding="utf-8")


def test_a_release_is_made_again_byte_for_byte(project: Path) -> None:
    """Nothing of the moment is in it."""
    assert snapshot(made("one")) == snapshot(made("two"))


# What must not leave


def unknown_key() -> None:
    edit(Path("models/dynamics/config.json"), transitions=253)


def unknown_statement_key() -> None:
    edit_statements(cohort=6)


def more_tensors() -> None:
    edit_tensors(Path("models/dynamics/model.safetensors"), {"first_observation": torch.zeros(3)})


def metadata() -> None:
    edit_tensors(Path("models/dynamics/model.safetensors"), {}, {"made": "by ana"})


def policy_metadata() -> None:
    edit_tensors(Path("models/policy/policy.safetensors"), {}, {"made": "by ana"})
    renew_policy_hash()


def renew_policy_hash() -> None:
    digest = hashlib.sha256(Path("models/policy/policy.safetensors").read_bytes()).hexdigest()
    edit(Path("metrics/summary.json"), policy_sha256=digest)


def not_finite() -> None:
    path = Path("models/dynamics/model.safetensors")
    edit_tensors(path, {"layers.0.bias": torch.full_like(load_file(path)["layers.0.bias"], torch.nan)})


def pickled() -> None:
    Path("models/dynamics/model.safetensors").write_bytes(pickle.dumps([1]))


def another_models_policy() -> None:
    edit(Path("models/policy/privacy.json"), charge="another")


def lower_epsilon() -> None:
    edit_statements(epsilon=0.1)
    edit(Path("metrics/summary.json"), epsilon=0.1)


def another_event() -> None:
    edit_statements(rounds=2)


def void() -> None:
    edit_statements(void=["noise is seeded"])
    edit(Path("metrics/summary.json"), void=["noise is seeded"])


def mopo() -> None:
    edit(Path("models/dynamics/config.json"), variant="mopo")


def not_private() -> None:
    edit(Path("models/dynamics/config.json"), variant="no_clip")


def old_summary() -> None:
    edit(Path("metrics/summary.json"), epsilon=3.0)


def another_policy() -> None:
    edit(Path("metrics/summary.json"), policy_sha256="0" * 64)


def other_data() -> None:
    edit(Path("data/partitions/manifest.json"), dataset_fingerprint="1" * 64)


def unknown_charge() -> None:
    edit_statements(charge="feedfacefeedface")


def unkeyed_hash() -> None:
    digest = hashlib.sha256(Path("data/partitions/private/part-00000.parquet").read_bytes()).hexdigest()
    edit_statements(public_assumptions=[f"the data with content {digest}"])


def short_unkeyed_hash() -> None:
    digest = hashlib.md5(Path("data/trajectories/part-00000.parquet").read_bytes()).hexdigest()
    edit_statements(public_assumptions=[f"the data with content {digest[:12]}"])


def dvc_hash() -> None:
    Path("dvc.lock").write_text(
        "outs:\n- path: data/raw\n  md5: 0123456789abcdef0123456789abcdef.dir\n", encoding="utf-8"
    )
    edit_statements(public_assumptions=["DVC's 0123456789abcdef0123456789abcdef.dir"])


def cached_hash() -> None:
    entry = Path(".dvc/cache/files/md5/fe/dcba9876543210fedcba9876543210")
    entry.parent.mkdir(parents=True)
    entry.write_bytes(b"")
    edit_statements(public_assumptions=["fedcba9876543210fedcba9876543210"])


def private_size() -> None:
    size = Path("data/partitions/private/part-00000.parquet").stat().st_size
    edit_statements(public_assumptions=[f"{size} bytes of data"])


def private_path() -> None:
    edit_statements(public_assumptions=["all in data/partitions/private"])


def absolute_path() -> None:
    edit_statements(public_assumptions=["all in /home/ana/project"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (unknown_key, "models/dynamics/config.json: not as declared: transitions"),
        (unknown_statement_key, "models/dynamics/privacy.json: not as declared: cohort"),
        (more_tensors, "models/dynamics"),
        (metadata, "models/dynamics/model.safetensors: holds more than its model"),
        (policy_metadata, "models/policy/policy.safetensors: holds more than its model"),
        (not_finite, "models/dynamics"),
        (pickled, "models/dynamics: not a dynamics model"),
        (another_models_policy, "models/policy/privacy.json: charge another is not in the ledger"),
        (lower_epsilon, "models/dynamics/privacy.json: epsilon: less than the accountant"),
        (another_event, "rounds"),
        (void, "models/dynamics/privacy.json: void: noise is seeded"),
        (mopo, "models/dynamics/config.json: variant mopo"),
        (not_private, "variant"),
        (old_summary, "metrics/summary.json: epsilon"),
        (another_policy, "metrics/summary.json: policy_sha256: found SHA-256 000000000000"),
        (other_data, "data/partitions/manifest.json: another version"),
        (unknown_charge, "charge feedfacefeedface is not in the ledger"),
        (unkeyed_hash, "holds an unkeyed hash of private data"),
        (short_unkeyed_hash, "holds an unkeyed hash of private data"),
        (dvc_hash, "holds an unkeyed hash of private data"),
        (cached_hash, "holds an unkeyed hash of private data"),
        (private_size, "holds a size or a row count of private data"),
        (private_path, "holds a path"),
        (absolute_path, "holds a path"),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_must_not_leave_is_refused_in_one_line_and_nothing_is_left(damage: Callable[[], None], says: str) -> None:
    damage()
    before = set(Path().iterdir())
    with pytest.raises(PipelineError, match=re.escape(says)) as refused:
        made()
    assert "\n" not in str(refused.value)
    assert set(Path().iterdir()) == before


@pytest.mark.usefixtures("project")
def test_a_refusal_leaves_the_last_bundle() -> None:
    before = snapshot(made())
    unknown_key()
    with pytest.raises(PipelineError):
        made()
    assert snapshot(Path("out")) == before


@pytest.mark.usefixtures("project")
def test_only_a_bundle_or_an_empty_folder_is_replaced() -> None:
    Path("empty").mkdir()
    made("empty")
    made("empty")
    Path("empty/notes.txt").write_text("mine", encoding="utf-8")
    Path("file").write_text("mine", encoding="utf-8")
    Path("link").symlink_to("models")
    for target, says in (
        ("empty", "something else"),
        ("models", "something else"),
        (".", "something else"),
        ("file", "in the way"),
        ("link", "in the way"),
    ):
        with pytest.raises(PipelineError, match=says):
            made(target)
    assert Path("empty/notes.txt").read_text(encoding="utf-8") == "mine"


def test_what_is_void_leaves_only_on_demand_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_stages(tmp_path, tiny_params(), EPISODES, seeded=True)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert cli.main(["release", "out"]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: models/dynamics/privacy.json: void: noise is seeded")
    assert captured.err.count("\n") == 1
    assert cli.main(["release", "out", "--void-ok"]) == 0
    assert "VOID: noise is seeded. Do not rely on it" in Path("out/card.md").read_text(encoding="utf-8")
    assert cli.main(["release", "--check", "out"]) == 1
    assert cli.main(["release", "--check", "out", "--void-ok"]) == 0


def test_a_model_without_a_guarantee_leaves_only_on_demand_and_says_so(tmp_path: Path) -> None:
    run_stages(tmp_path, tiny_params("no_clip"), EPISODES)
    with inside(tmp_path):
        with pytest.raises(PipelineError, match="void: no noise is added; updates are not clipped"):
            made()
        made(void_ok=True)
        assert "**No protection: nothing is guaranteed" in Path("out/card.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("project")
def test_the_ledgers_statement_tells_what_was_spent_and_nothing_else() -> None:
    """Runs on a version that shares a unit count, runs on other data are not mentioned; nothing says who or when."""
    chosen = params.load(Path("params.yaml"))
    members = Path("data/partitions/units.bin").read_bytes()
    shared, disjoint = Version("5" * 64, "trajectory", 1, members[:32]), Version("6" * 64, "trajectory", 1, bytes(32))
    event = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(1.0, dp_event.GaussianDpEvent(9.0)), 2)
    secret = {"identity": "7" * 64, "git_commit": "8" * 40, "mlflow_run": "9" * 32}
    with closing(project_ledger(chosen)) as ledger:
        for version, stage in ((shared, "audit"), (disjoint, "elsewhere")):
            charge = ledger.reserve(Request(version, "other-data", stage, event=event, delta=1e-3, **secret), None)
            ledger.abort(charge.id, "note of ana")
    statement = read_json(made() / LEDGER)
    assert [record["stage"] for record in statement["records"]] == ["train_model", "audit"]
    assert [record["state"] for record in statement["records"]] == ["committed", "aborted"]
    assert [record["same_version"] for record in statement["records"]] == [True, False]
    assert statement["charges"] == 2
    assert statement["epsilon"] > read_json(Path("models/policy/privacy.json"))["epsilon"]
    assert "2 runs used these data" in Path("out/card.md").read_text(encoding="utf-8")
    everything = b"".join(snapshot(Path("out")).values())
    hidden = [*secret.values(), "5" * 64, "6" * 64, "other-data", "elsewhere", "ana"]
    assert [word for word in hidden if word.encode() in everything] == []
    assert re.search(rb"\dT[0-2]\d:", everything) is None, "no time of day"
    digests = [members[start : start + 16] for start in range(0, len(members), 16)]
    assert not any(digest in everything or digest.hex().encode() in everything for digest in digests)
