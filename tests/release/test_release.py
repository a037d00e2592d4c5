"""The bundle that may leave: its files, what is refused, and that neighbours differ only through the mechanism."""

import hashlib
import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting import dp_event
from safetensors.torch import load_file, save_file

from primorl.commands import main as cli
from primorl.config import params
from primorl.privacy.ledger.ledger import Request, Version
from primorl.project.errors import PipelineError
from primorl.project.files import read_json, write_json
from primorl.project.records import to_json
from primorl.release import bundle
from primorl.release.bundle import FILES, LEDGER, MANIFEST
from primorl.release.making import release
from primorl.setup.accounts import project_ledger
from tests.release.released_project import EPISODES, inside, run_stages, tiny_params
from tests.trajectories.builders import episode, snapshot

TEXTS = sorted((FILES | {MANIFEST}) - {"dynamics/model.safetensors", "policy/policy.safetensors"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a private model and policy; read only."""
    folder = tmp_path_factory.mktemp("trained") / "project"
    run_stages(folder, tiny_params(), EPISODES)
    return folder


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    shutil.copytree(trained, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.fixture(scope="module")
def released(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound bundle; read only."""
    target = tmp_path_factory.mktemp("released") / "bundle"
    with inside(trained):
        release(target, params.load(Path("params.yaml")), void_ok=False)
    return target


@pytest.fixture
def received(released: Path, tmp_path: Path) -> Path:
    """A copy of the bundle, as somebody may have changed it on its way."""
    shutil.copytree(released, tmp_path / "received")
    return tmp_path / "received"


def made(target: str = "out", *, void_ok: bool = False) -> Path:
    release(Path(target), params.load(Path("params.yaml")), void_ok=void_ok)
    return Path(target)


def edit(path: Path, **changes: Any) -> None:
    write_json(path, read_json(path) | changes)


def edit_statements(folder: str = "models", **changes: Any) -> None:
    """The same change in the model's and the policy's statement."""
    for part in ("dynamics", "policy"):
        edit(Path(folder, part, "privacy.json"), **changes)


def edit_tensors(path: Path, extra: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    save_file(load_file(path) | extra, path, metadata=metadata)


def relist(folder: Path) -> None:
    """What a forger does last."""
    write_json(folder / MANIFEST, to_json(bundle.manifest_of(folder)))


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
        (another_models_policy, "models/policy/privacy.json: differs from"),
        (lower_epsilon, "models/dynamics/privacy.json: epsilon: less than the accountant"),
        (another_event, "rounds"),
        (void, "models/dynamics/privacy.json: void: noise is seeded"),
        (mopo, "models/dynamics/config.json: variant mopo"),
        (not_private, "variant"),
        (old_summary, "metrics/summary.json: epsilon"),
        (another_policy, "metrics/summary.json: not of the policy"),
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


@pytest.mark.usefixtures("project")
def test_what_is_void_leaves_only_on_demand_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    void()
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
    hidden = [*secret.values(), "5" * 64, "6" * 64, "other-data", "elsewhere", "ana", "T0", "T1", "T2"]
    assert [word for word in hidden if word.encode() in everything] == []
    digests = [members[start : start + 16] for start in range(0, len(members), 16)]
    assert not any(digest in everything or digest.hex().encode() in everything for digest in digests)


# What comes from a stranger


def swapped(folder: Path) -> None:
    edit(folder / "dynamics/config.json", rounds=2)


def extra_file(folder: Path) -> None:
    (folder / "policy/setup.py").write_text("print('hello')", encoding="utf-8")


def extra_folder(folder: Path) -> None:
    (folder / "notes").mkdir()


def missing(folder: Path) -> None:
    (folder / "card.md").unlink()


def linked(folder: Path) -> None:
    (folder / "card.md").unlink()
    (folder / "card.md").symlink_to("/etc/hostname")


def archive(folder: Path) -> None:
    with zipfile.ZipFile(folder / "policy/policy.safetensors", "w") as file:
        file.writestr("data.pkl", pickle.dumps([1]))
    relist(folder)


def polyglot(folder: Path) -> None:
    """A model with an archive behind it: one reader sees tensors, another a pickle."""
    with zipfile.ZipFile(folder / "policy/policy.safetensors", "a") as file:
        file.writestr("data.pkl", pickle.dumps([1]))
    relist(folder)


def two_epsilons(folder: Path) -> None:
    """Two readers of one file may then see two guarantees."""
    for part in ("dynamics", "policy"):
        path = folder / part / "privacy.json"
        path.write_text(path.read_text(encoding="utf-8").replace("{\n", '{\n  "epsilon": 0.1,\n', 1), encoding="utf-8")
    relist(folder)


def infinite(folder: Path) -> None:
    path = folder / "dynamics/config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("-10.0", "-1e999"), encoding="utf-8")
    relist(folder)


def deep(folder: Path) -> None:
    (folder / LEDGER).write_text("[" * 100_000, encoding="utf-8")
    relist(folder)


def endless_event(folder: Path) -> None:
    ledger = read_json(folder / LEDGER)
    ledger["records"][0]["event"]["count"] = 10**12
    write_json(folder / LEDGER, ledger)
    relist(folder)


def forged_epsilon(folder: Path) -> None:
    """Lower everywhere, hashes and card included: only accounting again finds it."""
    epsilon = json.dumps(read_json(folder / "policy/privacy.json")["epsilon"])
    for name in TEXTS:
        path = folder / name
        path.write_text(path.read_text(encoding="utf-8").replace(epsilon, "0.123456789012345"), encoding="utf-8")
    relist(folder)


def forged_total(folder: Path) -> None:
    edit(folder / LEDGER, epsilon=0.1)
    relist(folder)


def forged_card(folder: Path) -> None:
    path = folder / "card.html"
    epsilon = json.dumps(read_json(folder / "policy/privacy.json")["epsilon"])
    path.write_text(path.read_text(encoding="utf-8").replace(f"<td>{epsilon}</td>", "<td>0.1</td>"), encoding="utf-8")
    relist(folder)


def forged_account(folder: Path) -> None:
    """What was spent before is left out of the statement."""
    for part in ("dynamics", "policy"):
        spent = read_json(folder / part / "privacy.json")["spent_on_dataset"]
        edit(folder / part / "privacy.json", spent_on_dataset=spent | {"epsilon": 0.1})
    relist(folder)


def rude_name(folder: Path) -> None:
    (folder / "x\nerror: all is well\x1b[2J").write_bytes(b"")


def rude_key(folder: Path) -> None:
    edit(folder / LEDGER, **{"x\nerror: all is well\x1b[2J": 1})
    relist(folder)


def script_in_card(folder: Path) -> None:
    path = folder / "card.html"
    path.write_text(path.read_text(encoding="utf-8").replace("<main>", "<main><script>1</script>"), encoding="utf-8")
    relist(folder)


def link_in_card(folder: Path) -> None:
    path = folder / "card.md"
    path.write_text(path.read_text(encoding="utf-8") + "[more](javascript:1)\n", encoding="utf-8")
    relist(folder)


def large(folder: Path) -> None:
    with (folder / "card.md").open("r+b") as file:
        file.truncate(1 << 30)


def other_rounds(folder: Path) -> None:
    edit(folder / "dynamics/config.json", rounds=4)
    relist(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (swapped, "dynamics/config.json: not the file that MANIFEST.json lists"),
        (extra_file, "policy/setup.py does not belong"),
        (extra_folder, "notes does not belong"),
        (missing, "card.md is missing"),
        (linked, "card.md is a link"),
        (archive, "policy/policy.safetensors: is a ZIP archive"),
        (polyglot, "policy/policy.safetensors: is a ZIP archive"),
        (two_epsilons, "dynamics/privacy.json: not JSON (a key is given twice"),
        (infinite, "dynamics/config.json: not JSON (found -1e999, which is too large"),
        (deep, "ledger-statement.json: not JSON (RecursionError"),
        (endless_event, "ledger-statement.json: not as declared: records.0.event"),
        (forged_epsilon, "dynamics/privacy.json: epsilon: less than the accountant"),
        (forged_total, "ledger-statement.json: epsilon: less than the accountant"),
        (forged_account, "dynamics/privacy.json: spent_on_dataset: less than the accountant"),
        (forged_card, "card.html: its ε is not the one"),
        (rude_name, "x?error: all is well?[2J does not belong"),
        (rude_key, "ledger-statement.json: not as declared: x?error: all is well?[2J"),
        (script_in_card, "card.html: holds markup that is not ours"),
        (link_in_card, "card.md: holds markup that is not ours"),
        (large, "card.md is larger"),
        (other_rounds, "dynamics/config.json: rounds: more than the 3"),
    ],
)
def test_a_strangers_bundle_is_refused_in_one_line(received: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(received)
    with pytest.raises(PipelineError, match=re.escape(says)) as refused:
        bundle.check(received, void_ok=False)
    assert "\n" not in str(refused.value)


def test_a_bundle_needs_no_project_to_be_checked(received: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (received.parent / "elsewhere").mkdir()
    monkeypatch.chdir(received.parent / "elsewhere")
    assert bundle.check(received, void_ok=False).private
    assert list(Path().iterdir()) == []
    with pytest.raises(PipelineError, match="not a folder"):
        bundle.check(received / "card.md", void_ok=False)


# Neighbouring data

NOISE = 50.0
BY_THE_MECHANISM = {
    *(f"{name}: layers" for name in ("dynamics/model.safetensors", "policy/policy.safetensors")),
    # A policy of other weights earns other returns, and other files have other hashes.
    *(f"{card}: {words}" for card in ("card.md", "card.html") for words in ("Mean return in", "Score on the scale")),
    *(f"{MANIFEST}: files.{name}" for name in (*FILES,)),
}
# Chance names a charge. The fingerprint is keyed: without the secret, which stays at home, nobody can compute which of
# two known datasets it belongs to. (That two releases used equal data can be seen; docs/privacy.md says so.)
NAMES = {
    *(f"{part}/privacy.json: {key}" for part in ("dynamics", "policy") for key in ("charge", "dataset_fingerprint")),
    f"{LEDGER}: dataset_fingerprint",
    f"{LEDGER}: records.0.id",
    *(f"{card}: {words}" for card in ("card.md", "card.html") for words in ("charge", "keyed fingerprint of the data")),
}
K_IS_PUBLIC = {
    *(f"{part}/privacy.json: {key}" for part in ("dynamics", "policy") for key in ("units", "public_assumptions.0")),
    *(f"{card}: {words}" for card in ("card.md", "card.html") for words in ("Both were made from", "the number of")),
}


def bundle_of(folder: Path, episodes: tuple[Any, ...]) -> Path:
    run_stages(folder, tiny_params(noise_multiplier=NOISE), episodes, seeded=True)
    with inside(folder):
        made(void_ok=True)
    return folder / "out"


@pytest.fixture(scope="module")
def of_this(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("this"), EPISODES)


@pytest.fixture(scope="module")
def of_one_exchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One private unit is somebody else's, just as long: the same K, and the fixed entropy falls the same way."""
    other = episode(len(EPISODES[-1].rewards), seed=999)
    return bundle_of(tmp_path_factory.mktemp("exchanged"), (*EPISODES[:-1], other))


@pytest.fixture(scope="module")
def of_one_more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("more"), (*EPISODES, episode(21, seed=999)))


def test_bundles_of_data_that_differ_in_one_unit_differ_only_through_the_mechanism(
    of_this: Path, of_one_exchanged: Path
) -> None:
    """With the noise fixed, everything but the weights and what follows from them is equal, sizes included."""
    assert read_json(of_this / "policy/privacy.json")["void"] == ["noise is seeded"]
    found = differences(of_this, of_one_exchanged)
    assert found - BY_THE_MECHANISM - NAMES == set()
    assert "dynamics/model.safetensors: layers" in found  # the unit took part: otherwise this compares nothing
    for name in FILES - {"card.md", "card.html"}:
        assert (of_this / name).stat().st_size == (of_one_exchanged / name).stat().st_size


def test_bundles_of_data_with_one_unit_more_differ_beside_that_only_in_the_declared_number_of_units(
    of_this: Path, of_one_more: Path
) -> None:
    found = differences(of_this, of_one_more)
    assert found - BY_THE_MECHANISM - NAMES - K_IS_PUBLIC == set()
    assert "policy/privacy.json: units" in found


@pytest.mark.parametrize("leak", ["transitions", "sha256"])
def test_a_planted_leak_is_seen_by_the_comparison_and_refused_by_the_check(
    of_this: Path, of_one_more: Path, tmp_path: Path, leak: str
) -> None:
    """The twin: a private count, then an unkeyed hash, in config.json."""
    for name, original in (("this", of_this), ("more", of_one_more)):
        shutil.copytree(original, tmp_path / name)
        private = (original.parent / "data/partitions/private/part-00000.parquet").read_bytes()
        told = {"transitions": len(private), "sha256": hashlib.sha256(private).hexdigest()}[leak]
        edit(tmp_path / name / "dynamics/config.json", **{leak: told})
        relist(tmp_path / name)
    assert differences(tmp_path / "this", tmp_path / "more") - BY_THE_MECHANISM - NAMES - K_IS_PUBLIC == {
        f"dynamics/config.json: {leak}"
    }
    with pytest.raises(PipelineError, match=rf"config.json: not as declared: {leak}"):
        bundle.check(tmp_path / "this", void_ok=True)


def differences(one: Path, other: Path) -> set[str]:
    """Where two bundles differ: JSON keys, tensors, lines of the cards by their first words."""
    assert set(snapshot(one)) == set(snapshot(other))
    found: set[str] = set()
    for name in sorted(FILES | {MANIFEST}):
        if name.endswith(".safetensors"):
            ours, theirs = load_file(one / name), load_file(other / name)
            assert {key: value.shape for key, value in ours.items()} == {key: v.shape for key, v in theirs.items()}
            found |= {f"{name}: {key.partition('.')[0]}" for key in ours if not torch.equal(ours[key], theirs[key])}
        elif name.endswith(".json"):
            first, second = flat(read_json(one / name)), flat(read_json(other / name))
            found |= {f"{name}: {key}" for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
        else:
            lines = zip(
                *((folder / name).read_text(encoding="utf-8").splitlines() for folder in (one, other)), strict=True
            )
            known = (*BY_THE_MECHANISM, *NAMES, *K_IS_PUBLIC)
            starts = [entry.removeprefix(f"{name}: ") for entry in known if entry.startswith(name)]
            for line, twin in lines:
                if line != twin:
                    plain = re.sub(r"^(- |\| |<li>|<tr><th>)", "", line)
                    found.add(f"{name}: {next((start for start in starts if plain.startswith(start)), plain)}")
    return found


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of a JSON value by their dotted path; file names keep their dots."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {key: leaf for name, value in items for key, leaf in flat(value, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): content}
