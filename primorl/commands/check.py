"""``primorl check``: whether all is well before a run."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import primorl
from primorl.base import paths
from primorl.base.errors import PipelineError
from primorl.base.files import home
from primorl.base.template import check_version
from primorl.commands.terminal import flag

if TYPE_CHECKING:
    from primorl.config.params import Params


def check(
    charges: Annotated[
        bool,
        flag(
            "--charges",
            "Say what `dvc repro` would charge.",
        ),
    ] = False,
) -> None:
    """Check settings, a log's columns and the machine before `dvc repro`.

    Runs nothing and changes nothing.

    DVC itself may remove outputs before it finds a mistake in params.yaml; this command finds it
    first.

    Examples:
      primorl check && dvc repro            run the pipeline only if all is well
      primorl check --charges && dvc repro  say first what it charges
    """
    from primorl.config.params import load

    check_version(primorl.__version__)
    params = load()
    problems = []
    for part in (_settings, _log, _python, _secrets):
        try:
            for line in part(params):
                print(line)
        except PipelineError as wrong:
            problems.append(str(wrong))
    if problems:
        raise PipelineError("; ".join(problems))
    if charges:
        _say_charges(params)


def _settings(params: "Params") -> Iterator[str]:
    """Check settings that only a stage would find wrong."""
    if params.online.asked:
        from primorl.stages.online import cohorts_of

        if params.chosen.environment is None:
            raise PipelineError(
                "online.yaml: users: found users, and "
                f"datasets/{params.dataset}.yaml names no environment that could simulate them; "
                "set it to null"
            )
        cohorts_of(params.online)
    yield "params.yaml and the datasets are valid"


def _log(params: "Params") -> Iterator[str]:
    """Check the files of a log: as they were collected, and with the columns of the entry."""
    from primorl.config.datasets import TabularDataset
    from primorl.data.sources.logs import changed

    if (said := changed(params.dataset, params.chosen)) is not None:
        raise PipelineError(said)
    if isinstance(params.chosen, TabularDataset):
        from primorl.data.sources.tabular import Tabular

        there = Tabular(params.dataset, params.chosen).check_columns()
        found = "has the columns of the entry" if there else "not there yet"
        yield f"{params.chosen.options.files}: {found}"


def _python(_: "Params") -> Iterator[str]:
    """Check that the first ``python`` on PATH, with which DVC runs stages, is this one, and finds
    them.
    """
    if os.environ.get("PYTHONSAFEPATH"):
        raise PipelineError(
            "PYTHONSAFEPATH: found set, so Python does not see the stages, and DVC deletes their "
            "outputs before they fail; unset it for `dvc repro`"
        )
    ours, found = Path(sys.executable).parent, shutil.which("python")
    if found is None or Path(found).absolute().parent != ours:
        yield (
            f"note: {found or 'no python'} is first on PATH, with which `dvc repro` would run the "
            f"stages; put {ours} first: source {ours}/activate"
        )


def _secrets(_: "Params") -> Iterator[str]:
    """Check that the project's state is its owner's alone, and there where it is needed."""
    state, secret = home() / paths.STATE, home() / paths.SECRET
    for path, mode in ((state, "700"), (secret, "600")):
        if path.exists() and path.stat().st_mode & 0o077:
            raise PipelineError(f"{path}: others may read it; chmod {mode} {path}")
    if not secret.exists() and (home() / paths.LEDGER_HEAD).exists():
        raise PipelineError(
            f"{secret}: not there, and without it the ledger cannot be read; put it back from its "
            "backup"
        )
    if state.exists():
        yield f"{paths.STATE} is its owner's alone; `primorl ledger verify` checks the ledger"


def _say_charges(params: "Params") -> None:
    """Print the charges of the next run."""
    from primorl.work.bill import UNKNOWN, preview

    found = preview(params)
    print(UNKNOWN if found is None else found)
