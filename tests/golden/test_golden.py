"""What an earlier version made is opened, restored without a charge, verified and released by this one."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from pipeline import evaluate, online
from primorl.base.errors import PipelineError
from primorl.base.paths import PARTITIONS
from primorl.config import params
from primorl.evaluate.private.results import BEYOND
from primorl.paid.clone import clone_identity
from primorl.paid.model import model_identity
from primorl.paid.partitions import Partitions
from primorl.release.build import release
from primorl.release.contents import DECLARED
from tests.golden.make import CHARGED, KEPT, PREPARING, command, run
from tests.projects import inside

FREE = ("spent_on_dataset", "total", "time", "seconds", "git_commit")
"""Keys whose values depend on what was charged since, or on the machine."""
SAME_FILES = (
    "models/dynamics/model.safetensors",
    "models/dynamics/starts.safetensors",
    "models/dynamics/config.json",
    "models/behaviour/policy.safetensors",
    "models/behaviour/config.json",
    "data/partitions/units.bin",
    "data/partitions/public_units.bin",
    "data/partitions/manifest.json",
)
SAME_FACTS = (
    "models/dynamics/privacy.json",
    "models/behaviour/privacy.json",
    "metrics/private_evaluation.json",
    "reports/selection.json",
)


@pytest.fixture
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The kept project of the parameter's name, as working directory."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    with tarfile.open(KEPT / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    with inside(tmp_path / request.param):
        yield tmp_path / request.param


def facts(value: Any) -> Any:
    """The content of a JSON file without the keys of `FREE` and an answer of later versions; numbers to six digits."""
    if isinstance(value, dict):
        return {key: facts(each) for key, each in value.items() if key not in FREE}
    if isinstance(value, list):
        later = (
            each for each in value if not (isinstance(each, dict) and each.get("what") == BEYOND)
        )
        return [facts(each) for each in later]
    return float(f"{value:.6g}") if isinstance(value, float) else value


ONE_HOT = b'  "one_hot": [\n    [\n      2,\n      3\n    ]\n  ],\n'
"""What later versions say in ``models/behaviour/config.json``: which dimensions are categories of one column."""


def read(file: str) -> Any:
    return facts(json.loads(Path(file).read_text(encoding="utf-8")))


def charges(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    command("ledger", "show", "--json")
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    for charge in found:
        del charge["made"]  # grows: a statement written again holds what was spent since
    return found


@pytest.mark.parametrize("opened", ["log"], indirect=True)
def test_paid_work_is_restored(opened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = charges(capsys)
    files = {name: Path(name).read_bytes() for name in SAME_FILES}
    told = {name: read(name) for name in SAME_FACTS}
    rows = pq.read_table("data/partitions/private")
    for name in (*SAME_FILES, *SAME_FACTS, "data/partitions/private/part-00000.parquet"):
        Path(name).unlink()
    run(*PREPARING, *CHARGED)
    command("select", "models/policy", "models/behaviour", "--epsilon", "3", "--estimator", "model")
    assert charges(capsys) == before, "the same identities, records and events; nothing was charged"
    command("ledger", "verify")
    again = pq.read_table("data/partitions/private")
    assert again.equals(rows)
    assert again.schema.metadata == rows.schema.metadata
    for name in SAME_FILES:
        now = Path(name).read_bytes().replace(ONE_HOT, b"")
        assert now == files[name], name
    for name in SAME_FACTS:
        assert read(name) == told[name], name


@pytest.mark.parametrize("opened", ["log"], indirect=True)
def test_finished_run_is_evaluated_and_released(opened: Path) -> None:
    summary = read("metrics/summary.json")
    Path("metrics/summary.json").unlink()
    run(evaluate)
    assert like(read("metrics/summary.json")) == like(summary)
    command("ledger", "verify")
    is_released(opened, "models/policy")


@pytest.mark.parametrize("opened", ["online"], indirect=True)
def test_online(opened: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, told = charges(capsys), read("models/online/privacy.json")
    weights = Path("models/online/policy.safetensors")
    kept = weights.read_bytes()
    weights.unlink()
    run(online)
    assert charges(capsys) == before
    command("ledger", "verify")
    assert weights.read_bytes() == kept
    assert read("models/online/privacy.json") == told
    is_released(opened, "models/online")


def like(content: dict[str, Any]) -> dict[str, Any]:
    """A file's content without what later versions say otherwise: the margin, and the interval of the gain."""
    said = {key: value for key, value in content.items() if key != "private_evaluation_sha256"}
    if said.get("recommendation") is not None:
        said["recommendation"] = {
            key: said["recommendation"][key] for key in ("answer", "policy", "gain", "misfit")
        }
    return said


TEXTS = {
    "owner": "Ward 3",
    "purpose": "research",
    "contact": "ward3@hospital.example",
    "licence": "internal",
}


def is_released(project: Path, policy: str) -> None:
    """The kept bundle is sound, and a new one has the same files, the texts of people beside them, and the same facts.

    A log is not released before people state the texts; the error names all that are missing.
    """
    command("release", "--check", "out/bundle")
    stated = set()
    if policy == "models/policy":
        with pytest.raises(
            PipelineError,
            match=r"csv-log\.yaml: card: owner, purpose, contact, licence: not stated",
        ):
            release(
                Path("out/again"),
                params.load(),
                void_ok=False,
                policy="models/policy",
                against_advice=True,
            )
        file, stated = Path("datasets/csv-log.yaml"), {Path(DECLARED)}
        entry = yaml.safe_load(file.read_text(encoding="utf-8"))
        file.write_text(yaml.safe_dump(entry | {"card": TEXTS}), encoding="utf-8")
    command("release", "out/again", "--policy", policy, "--against-advice")
    old, new = project / "out/bundle", project / "out/again"
    names = {path.relative_to(old) for path in old.rglob("*") if path.is_file()}
    assert {path.relative_to(new) for path in new.rglob("*") if path.is_file()} == names | stated
    for name in names:
        if name.suffix == ".json" and name.name != "MANIFEST.json":
            assert like(read(str(new / name))) == like(read(str(old / name))), name
        elif name.suffix == ".safetensors":
            assert (new / name).read_bytes() == (old / name).read_bytes(), name


@pytest.mark.parametrize("opened", ["log"], indirect=True)
def test_identities_of_fitted_settings(opened: Path) -> None:
    """They hold which keys are fitted and what was asked, never the fitted values."""
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    for block, keys in (
        ("privacy", ("sampling_probability", "rounds", "clipping_norm")),
        ("dynamics", ("start", "hidden", "learning_rate", "beta_nll")),
    ):
        raw[block] |= dict.fromkeys(keys, "auto")
    Path("params.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    fitted, partitions = params.load(Path("params.yaml")), Partitions.open(PARTITIONS, None)
    assert (
        model_identity(fitted, partitions)
        == "889e30052eb43a22d5b91600d83c97c3d6b333584c2e9b2fbe986e8e8da6f604"
    )
    assert (
        clone_identity(fitted, partitions)
        == "eda22cd87f717e2bb41e303b6c4b246111c26427bda77af63ecc6ebfa4b507b7"
    )
