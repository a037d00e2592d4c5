"""The stage reads released and public files alone, and the page says what the summary says."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import report
from primorl.base.errors import PipelineError
from primorl.base.files import read_json, write_json
from primorl.base.reporting import StageLog
from primorl.report.page import Facts, read_facts, write_page
from tests.data.builders import INFO
from tests.pipeline.test_evaluate import chosen, project, run
from tests.pipeline.tiny_policy import write_model
from tests.statements import PRIVATE

__all__ = ["project"]

HERE = PRIVATE | {"dataset_fingerprint": INFO.dataset_fingerprint, "units": 9}
MANIFEST, CURVES = Path("data/partitions/manifest.json"), Path("plots/curves.csv")


def evaluated() -> None:
    """A run of the data that are here, as far as `evaluate`."""
    write_model(HERE)
    write_json(Path("models/policy/privacy.json"), HERE)
    run(chosen())


def facts_here() -> Facts:
    return read_facts(chosen())


@pytest.mark.usefixtures("project")
def test_the_page_says_what_the_summary_says_and_reads_nothing_private() -> None:
    """Twin: without the private partition all is read the same."""
    evaluated()
    report.body(chosen(), StageLog())
    text = Path("reports/report.html").read_text(encoding="utf-8")
    summary = read_json(Path("metrics/summary.json"))
    for number in ("return_mean", "public_return_mean"):
        assert f"{summary[number]:.4g}" in text
    facts = facts_here()
    for private in ("private", "units.bin"):
        for file in Path("data/partitions").glob(f"{private}*"):
            file.rename(f"gone-{private}")
    assert facts_here() == facts


def keys(file: str | Path, **changes: Any) -> Callable[[], None]:
    return lambda: write_json(Path(file), read_json(Path(file)) | changes)


def another_split() -> None:
    for name in ("dynamics", "policy"):
        keys(f"models/{name}/privacy.json", public_units=2)()


REFUSED: list[tuple[Callable[[], object], str]] = [
    (keys(MANIFEST, public_units=4), r"public_units\.bin: missing, or not of 4 units"),
    (another_split, r"privacy\.json: public_units: found 2, allowed is 3"),
    (lambda: CURVES.write_text("epoch\n1\n", encoding="utf-8"), r"curves\.csv: not that of"),
]


@pytest.mark.usefixtures("project")
def test_files_of_another_run_are_refused(tmp_path: Path) -> None:
    """What is laid side by side on a page must be about the same data and policy.

    Twin: as written it is read.
    """
    evaluated()
    for name in ("dynamics", "policy"):
        keys(f"models/{name}/privacy.json", public_units=3)()
    folders = ("models", "metrics", "plots", "data/partitions")
    for folder in folders:
        shutil.copytree(folder, tmp_path / "kept" / folder)
    facts_here()
    for change, says in REFUSED:
        change()
        with pytest.raises(PipelineError, match=says):
            facts_here()
        for folder in folders:
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "kept" / folder, folder)


@pytest.mark.usefixtures("project")
def test_a_report_of_an_earlier_run_says_that_people_came_or_left() -> None:
    """With a full budget there is no other run. Twin: two runs' files are refused all the same."""
    evaluated()
    before = facts_here()
    Path("data/partitions/units.bin").unlink()
    keys(MANIFEST, dataset_fingerprint="f" * 64, private_units=8)()
    with pytest.raises(PipelineError, match="dataset_fingerprint"):
        facts_here()
    facts = read_facts(chosen(), allow_newer_data=True)
    assert facts == replace(before, newer_data=True)
    for found in (before, facts):
        assert ("who withdrew" in write_page(found)) == found.newer_data
    keys("models/policy/privacy.json", dataset_fingerprint="1" * 64)()
    with pytest.raises(PipelineError):
        read_facts(chosen(), allow_newer_data=True)
