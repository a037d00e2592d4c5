"""Whether the files of a report are of one run: what is laid side by side on a page must be about the same data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from primorl.evaluation.summary import Summary
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.paths import CURVES, MANIFEST, PARAMS, PUBLIC, SUMMARY
from primorl.trajectories.storage.manifest import Manifest


@dataclass(frozen=True)
class Epoch:
    """The value of the policy after an epoch, and its interval."""

    number: int
    value: float
    low: float
    high: float


def refuse_another_dataset(summary: Summary, dataset: str) -> None:
    """Check that the run is of the dataset that params.yaml names, whose card and results stand on the page.

    Raises:
        PipelineError: it is of another one.
    """
    if summary.dataset != dataset:
        raise PipelineError(
            f"{PARAMS}: dataset: found {dataset!r}, and {SUMMARY} has the results of {summary.dataset!r}; "
            "run `dvc repro`, or change it back"
        )


def refuse_other_rows(statements: Mapping[Path, Statement], public_units: int) -> None:
    """Check that the public partition is of the data that the model and the policy were made from.

    Args:
        statements: by the folder of what they are about.
        public_units: how many units the public partition has.

    Raises:
        PipelineError: it is of another version of the data, or of another split.
    """
    manifest = Manifest.load(MANIFEST)
    for folder, statement in statements.items():
        here, made = manifest.info.dataset_fingerprint, statement.dataset_fingerprint
        if here != made:
            raise PipelineError(
                f"{MANIFEST}: dataset_fingerprint: found {here[:12]}…, and {folder / 'privacy.json'} says "
                f"{made[:12]}…: the public rows are of other data; run `dvc repro`"
            )
        declared = {MANIFEST: manifest.public_units, folder / "privacy.json": statement.public_units}
        for file, units in declared.items():
            if units not in (None, public_units):
                raise PipelineError(
                    f"{PUBLIC}: found {public_units} units, and {file} says {units}: the public rows are of another "
                    "split; run `dvc repro`"
                )


def refuse_another_curve(summary: Summary, curve: Sequence[Epoch]) -> None:
    """Check that the curve ends at the summary's value, as `evaluate` writes both from one result.

    Raises:
        PipelineError: it does not.
    """
    measured = summary.return_mean is not None
    value, ends = (
        (summary.return_mean, summary.return_ci95) if measured else (summary.model_value, summary.model_value_range)
    )
    last = curve[-1] if curve else None
    if last is None or (last.value, (last.low, last.high)) != (value, ends):
        found = "no epoch" if last is None else f"{last.value!r} after the last epoch"
        raise PipelineError(
            f"{CURVES}: found {found}, and {SUMMARY} says {value!r}: they are not of one evaluation; "
            "run `dvc repro evaluate`"
        )
