"""A project in Python: its bill, its runs and their results, by the stages that `dvc repro` runs.

Settings are those of ``params.yaml``, and a run writes them there, as ``dvc exp run -S`` does.
"""

import json
import os
import warnings
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

import primorl
from primorl.base import PipelineError, files
from primorl.base.dvc import Status, show_dvc
from primorl.base.files import project_folder, replaced_file
from primorl.base.processes import git_commit
from primorl.base.template import check_version
from primorl.config.params import Params, load, parse
from primorl.config.reading import read_yaml
from primorl.data.storage.rows import data_changed, describe_change
from primorl.data.storage.schema import Manifest
from primorl.evaluate.description import text
from primorl.evaluate.summary import Summary
from primorl.policy.loaded import Policy, load_policy
from primorl.privacy.ledger.history import list_budget_changes
from primorl.privacy.statement import Statement
from primorl.report.page import Spending, read_facts, write_page
from primorl.run import VerifiedRun
from primorl.tracking import results
from primorl.work.bill import UNKNOWN, Bill
from primorl.work.data import budget_of, read_ledger, read_version
from primorl.work.resolve import preview

_MAPPINGS = ("partition.public", "privacy.shares")
"""Settings whose value is a mapping."""


class Project:
    """A project: a folder with ``params.yaml`` and ``dvc.yaml``.

    Its methods do what the commands do, from any working directory, and raise the same errors of
    one line.

    Args:
        folder: the project's, or one inside it.

    Attributes:
        folder: of the project.

    Raises:
        PipelineError: neither the folder nor one above it is a project.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".") -> None:
        place = Path(folder).expanduser().resolve()
        self.folder = project_folder(place)
        if not ((self.folder / files.PARAMS).exists() and (self.folder / files.PIPELINE).exists()):
            allowed = f"a folder with {files.PARAMS} and {files.PIPELINE}, or one inside it"
            raise PipelineError(f"{place}: no project; allowed is {allowed}; see `primorl init`")

    def __repr__(self) -> str:
        return f"Project({str(self.folder)!r})"

    def bill(
        self, *, dataset: str | None = None, epsilon: float | None = None, **settings: Any
    ) -> Bill:
        """Tell what `run` would charge with these settings. Nothing is charged, and ``params.yaml``
        stays as it is.

        Without settings, data that are not there yet, or are out of date, are made first: `dvc
        repro plan`, which charges nothing.

        Raises:
            PipelineError: the settings are wrong or of data that are not here, or a stage fails.
        """
        given = _collect(dataset, epsilon, settings)
        with chdir(self.folder):
            found = _preview(given)
            if found is None and not given:
                show_dvc("repro", "--quiet", "plan")
                found = _preview(given)
            if found is None:
                raise PipelineError(UNKNOWN)
            return found

    def run(
        self, *, dataset: str | None = None, epsilon: float | None = None, **settings: Any
    ) -> "Run":
        """Run the stages whose inputs changed, and show what they print.

        Without any, nothing is trained or charged.

        Args:
            dataset: name of a file in ``datasets/``.
            epsilon: ``privacy.target_epsilon``, of all jobs together.
            settings: others, as ``params.yaml`` has them: ``seed=1``, ``policy={"epochs": 20,
                "seeds": [0, 1]}``. All are written to that file, and the next run has them too; it
                stays as it was where the run fails.

        Raises:
            PipelineError: a setting is unknown or wrong, the budget does not allow the run, or a
                stage fails.
        """
        given = _collect(dataset, epsilon, settings)
        with chdir(self.folder):
            check_version(primorl.__version__)
            before = Path(files.PARAMS).read_bytes()
            if given:
                bill = _preview(given)
                if bill is not None:
                    bill.refuse_unpayable()
                _set(given)
            try:
                show_dvc(*(("exp", "run") if given else ("repro",)))
            except PipelineError:
                if given:
                    with replaced_file(files.PARAMS) as fresh:
                        fresh.write_bytes(before)
                raise
            return Run._read(self)

    def runs(self) -> pd.DataFrame:
        """List the results on the dataset of ``params.yaml``, one a row, in the order of `primorl
        runs`.
        """
        with chdir(self.folder):
            status = Status()
            found = results(load())
            if line := describe_change(status):
                warnings.warn(f"{files.SUMMARY}: {line}", stacklevel=2)
        return pd.DataFrame(found)


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Its results stay the same when the project runs again; as text, they are a short table.

    Attributes:
        project: it is of.
        summary: content of ``metrics/summary.json``, such as ``summary.epsilon`` and
            ``summary.return_mean``.
        statement: the policy's privacy statement.
        curve: value of the policy after every epoch, and its interval.
    """

    project: Project
    summary: Summary
    statement: Statement
    curve: pd.DataFrame
    _policy: Policy | PipelineError

    @classmethod
    def _read(cls, project: Project) -> "Run":
        """Read the run in the working directory, and compare its files with each other."""
        found = VerifiedRun.read(load())
        curve = pd.read_csv(files.CURVES, index_col="epoch").dropna(axis="columns", how="all")
        try:
            policy: Policy | PipelineError = load_policy(files.POLICY)
        except PipelineError as advised_against:
            policy = advised_against
        return cls(project, found.evaluated, found.policy, curve, policy)

    def __repr__(self) -> str:
        return text(self.summary)

    @property
    def policy(self) -> Policy:
        """The trained policy.

        Raises:
            PipelineError: the run advises against it, and why.
        """
        if isinstance(self._policy, PipelineError):
            raise self._policy
        return self._policy

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write the report, with what was spent since; return the path.

        Args:
            out: a name that ends in ``.html``; None: ``reports/latest.html`` of the project.

        Raises:
            PipelineError: the project has run again since, or a file is missing or contradicts
                another.
        """
        target = (
            self.project.folder / files.LATEST_REPORT
            if out is None
            else Path(out).expanduser().resolve()
        )
        with chdir(self.project.folder):
            if Summary.read(files.SUMMARY) != self.summary:
                found = "found the results of another run; report on a run before the next one"
                raise PipelineError(f"{files.SUMMARY}: {found}")
            write_report(load(), target)
        return target


def _collect(
    dataset: str | None, epsilon: float | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Put all settings of a call together, as plain lists and numbers."""
    given = dict(settings) | ({"dataset": dataset} if dataset is not None else {})
    if epsilon is not None:
        given["privacy"] = {**given.get("privacy", {}), "target_epsilon": epsilon}
    plain: dict[str, Any] = json.loads(json.dumps(given, default=_plain))
    return plain


def _plain(value: Any) -> Any:
    """Give numbers and arrays of NumPy, and paths, as YAML has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    allowed = "numbers, texts, and lists and mappings of them"
    raise PipelineError(f"settings: found {type(value).__name__}; allowed are {allowed}")


def _preview(given: Mapping[str, Any]) -> Bill | None:
    """Tell what a run with these settings would charge; None: that is not known yet."""
    planned = {"plan"} if given else set()
    return preview(parse(_read_with_settings(given)), Status().changed_stages() | planned)


def _read_with_settings(given: Mapping[str, Any]) -> Any:
    """Return the content of ``params.yaml`` with settings in place."""
    raw = read_yaml(files.PARAMS, "")
    if isinstance(raw, dict):  # else `parse` refuses it
        _change(raw, given)
    return raw


def _set(given: Mapping[str, Any]) -> None:
    """Write settings, which were checked before, into ``params.yaml``, whose comments stay.

    Raises:
        PipelineError: DVC has no commit to begin an experiment from.
    """
    if git_commit() is None:
        found = "git gives no commit, which an experiment of DVC begins from"
        remedy = "run `git add --all` and `git commit` there, or what `git log` asks for"
        raise PipelineError(f"{Path.cwd()}: {found}; {remedy}")
    form = YAML()  # of the version and layout that DVC writes
    content = form.load(files.PARAMS)
    _change(content, given)
    with replaced_file(files.PARAMS) as fresh:
        form.dump(content, fresh)


def _change(content: dict[str, Any], given: Mapping[str, Any], prefix: str = "") -> None:
    """Change settings in place.

    A mapping changes keys of a block, and replaces a value of `_MAPPINGS`.
    """
    for key, value in given.items():
        below = content.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict) and prefix + key not in _MAPPINGS:
            _change(below, value, f"{prefix}{key}.")
        else:
            content[key] = value


def write_report(params: Params, target: Path) -> None:
    """Write the report of the run in the working directory, with the ledger's history.

    Raises:
        PipelineError: a file is missing or contradicts another, or the target is no ``.html`` file.
    """
    if target.suffix != ".html":
        raise PipelineError(f"--out: found {str(target)!r}; allowed is a name that ends in .html")
    status = Status()
    facts = read_facts(params, spending=_spending(params), allow_newer_data=True)
    facts = replace(facts, newer_data=data_changed(status))
    with replaced_file(target) as fresh:
        fresh.write_text(write_page(facts), encoding="utf-8")


def _spending(params: Params) -> Spending | None:
    """Read the ledger's history of the units that are here; None: nothing was charged to them."""
    manifest = Manifest.load(files.MANIFEST)
    ledger = read_ledger(params)
    if ledger is None:
        return None
    account = ledger.account(read_version(manifest))
    if not account.entries:
        return None
    limit, delta = budget_of(params, manifest.private_units), params.privacy.delta
    charges = tuple(
        (charge.stage, charge.time[:10], total) for charge, total in account.running(delta)
    )
    costs = {entry.charge.id: entry.cost for entry in account.entries}
    changes = [change for change, _ in list_budget_changes(account.charges, limit)]
    return Spending(charges, limit, changes, delta, costs)
