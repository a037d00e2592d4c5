"""The statement is read as it was written, refuses what it cannot mean, and is documented by its class."""

import json
from pathlib import Path

import pytest

from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.files import write_json
from tests.statements import NOT_PRIVATE, PRIVATE

CONTRACT = (
    *("private", "epsilon", "delta", "unit", "neighboring_relation", "accountant", "epsilon_rdp", "event"),
    *("sampling_probability", "noise_multiplier", "clipping_norm", "rounds", "public_assumptions"),
    *("dataset_fingerprint", "void"),
)


@pytest.mark.parametrize("content", [PRIVATE, NOT_PRIVATE])
def test_it_comes_back_as_it_was(tmp_path: Path, content: dict[str, object]) -> None:
    write_json(tmp_path / "privacy.json", content)
    found = Statement.read(tmp_path)
    found.write(tmp_path / "again")
    assert json.loads((tmp_path / "again/privacy.json").read_text(encoding="utf-8")) == content
    assert found.to_json() == content
    assert set(CONTRACT) <= set(content)
    assert found.sound is bool(content["private"])


def test_what_it_cannot_mean_is_refused(tmp_path: Path) -> None:
    """A guarantee without its numbers; and a format of before: without a version it counts as format 1."""
    for key in ("epsilon", "delta", "sampling_probability", "clipping_norm", "rounds"):
        write_json(tmp_path / "privacy.json", PRIVATE | {key: None})
        with pytest.raises(PipelineError, match=f"private: true, yet {key} is null"):
            Statement.read(tmp_path)
    write_json(tmp_path / "privacy.json", {key: value for key, value in PRIVATE.items() if key != "format"})
    with pytest.raises(PipelineError, match=r"privacy.json: found format 1, this version reads 3; run `dvc checkout`"):
        Statement.read(tmp_path)
