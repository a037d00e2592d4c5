"""``primorl check``, ``plan``, ``run``, ``summary``, ``runs`` and ``report``."""

import getpass
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import primorl
from primorl.base import PipelineError, files, say
from primorl.base.files import (
    LATEST_REPORT,
    MODEL,
    ONLINE_METRICS,
    POLICY,
    REPORT,
    SUMMARY,
    home,
    refuse_readable,
)
from primorl.base.template import check_version
from primorl.commands.terminal import AsJson, flag, format_table, option, path_option

if TYPE_CHECKING:
    from primorl.base.dvc import Status
    from primorl.config.params import Params


def check(
    charges: Annotated[bool, flag("--charges", "Say what `dvc repro` would charge.")] = False,
) -> None:
    """Check settings, a log's columns and the machine before `dvc repro`.

    Runs nothing and changes nothing.

    DVC itself may remove outputs before it finds a mistake in params.yaml; this command finds it
    first.

    Examples:
      primorl check && dvc repro            run the pipeline only if all is well
      primorl check --charges && dvc repro  say first what it charges
    """
    params = _check_all()
    if charges:
        from primorl.base.dvc import Status

        _show_charges(params, Status().changed_stages())


def _show_charges(params: "Params", changed: Set[str]) -> None:
    """Print the bill of the next run.

    Raises:
        PipelineError: it would be refused, after DVC deleted the results that are there.
    """
    from primorl.work.bill import UNKNOWN
    from primorl.work.resolve import preview

    bill = preview(params, changed)
    print(bill or UNKNOWN, flush=True)
    if bill is not None:
        bill.refuse_unpayable()


def _check_all(*, quiet: bool = False) -> "Params":
    """Check everything, and print what was found unless ``quiet``; return the settings.

    Raises:
        PipelineError: names all that is wrong.
    """
    from primorl.config.params import load

    check_version(primorl.__version__)
    params, problems = load(), []
    for part in (_settings, _log, _python, _secrets):
        try:
            for line in part(params):
                if not quiet:
                    print(line)
        except PipelineError as wrong:
            problems.append(str(wrong))
    if problems:
        raise PipelineError("; ".join(problems))
    return params


def _settings(params: "Params") -> Iterator[str]:
    """Check settings that only a stage would find wrong."""
    from primorl.config.datasets import MedsDataset, TabularDataset

    if params.online.asked:
        from primorl.stages.online import cohorts_of

        cohorts_of(params)
    if isinstance(log := params.chosen, MedsDataset | TabularDataset):  # their entries name columns
        from primorl.data.sources.meds import as_tabular
        from primorl.data.sources.tabular import read_spaces
        from primorl.work.data import check_labels

        log = as_tabular(log) if isinstance(log, MedsDataset) else log
        check_labels(params, read_spaces(params.dataset, log)[0])
    yield "params.yaml and the datasets are valid"


def _log(params: "Params") -> Iterator[str]:
    """Check a log's files: as they were collected, with the entry's columns."""
    from primorl.config.datasets import TabularDataset
    from primorl.data.sources.log_paths import describe_edits

    if (said := describe_edits(params.dataset, params.chosen)) is not None:
        raise PipelineError(said)
    if isinstance(params.chosen, TabularDataset):
        from primorl.data.sources.tabular import Tabular

        yield from Tabular(params.dataset, params.chosen).check_log()


def _python(_: "Params") -> Iterator[str]:
    """Check that the first ``python`` on PATH, with which DVC runs stages, is this one, and finds
    them.
    """
    if os.environ.get("PYTHONSAFEPATH"):
        raise PipelineError(
            "PYTHONSAFEPATH: found set, so Python does not see the stages, and DVC deletes their "
            "outputs before they fail; unset it for `dvc repro`"
        )
    try:
        getpass.getuser()
    except (KeyError, OSError):
        raise PipelineError("USER: not set, and this user has no name here; DVC needs it") from None
    ours, found = Path(sys.executable).parent, shutil.which("python")
    if found is None or not Path(found).parent.samefile(ours):
        yield (
            f"note: {found or 'no python'} is first on PATH, with which `dvc repro` would run the "
            f"stages; put {ours} first: source {ours}/activate"
        )


def _secrets(params: "Params") -> Iterator[str]:
    """Check that the project's state is its owner's alone, and there where it is needed; and that
    the ledger can be read.
    """
    from primorl.work.data import read_ledger

    refuse_readable()
    read_ledger(params)  # which needs the secret, and its server
    if (home() / files.STATE).exists():
        yield f"{files.STATE}: nobody else can read it; `primorl ledger verify` checks the ledger"


def plan(
    sampling_probability: Annotated[
        float | None,
        option("Q", "Probability with which each unit joins a round.", min=1e-12, max=1),
    ] = None,
    noise_multiplier: Annotated[
        float | None, option("Z", "Noise over clipping norm.", min=1e-6, max=1e6)
    ] = None,
    rounds: Annotated[int | None, option("T", "Number of rounds.", min=1, max=10**6)] = None,
    delta: Annotated[float | None, option("D", "δ.", min=1e-12, max=0.999999)] = None,
    target_epsilon: Annotated[
        float | None,
        option("E", "Solve for the noise of a model of this ε (PLD).", min=1e-12, max=1e12),
    ] = None,
    solve: Annotated[
        Literal["noise-multiplier", "rounds"] | None,
        option("WHAT", "What to solve for: noise-multiplier (default) or rounds."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the ε of a mechanism, or solve for a target ε.

    Examples:
      primorl plan                                     cost, verdict and numbers of the next run
      primorl plan --target-epsilon 1                  the noise for a model of ε 1, else as here
      primorl plan --target-epsilon 1 --solve rounds   the rounds that ε 1 pays for
      primorl plan --sampling-probability 0.01 --noise-multiplier 2 --rounds 400 --delta 1e-5

    Options that are not given are those of the run that params.yaml describes, and so are the
    queries beside its rounds: ε covers all of them together. Nothing is spent and no private row
    is read.
    """
    from primorl.base.dvc import Status

    numbers = {
        "sampling_probability": sampling_probability,
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "delta": delta,
        "target_epsilon": target_epsilon,
    }
    given = {name: number for name, number in numbers.items() if number is not None}
    wanted = None if solve is None else solve.replace("-", "_")
    # DVC takes as long to start as the accountant to load
    status = None if given or solve else Status()
    from primorl.commands import plan_answer

    plan_answer.show(given, wanted, as_json=as_json, status=status)


def run() -> None:
    """Check, say what will be charged, run the stages whose inputs changed, and show the results.

    The stages are run by `dvc repro`. Where nothing changed, nothing is run or charged.

    Examples:
      primorl run                             the run that params.yaml describes
      primorl run && primorl release bundle   and the bundle that may leave
    """
    from primorl.base.dvc import MAKE_DATA, Status, show_dvc
    from primorl.config.params import load

    # DVC deletes a stage's outputs before it finds a mistake in params.yaml, so that is checked
    # first. DVC takes a second to start meanwhile.
    status = Status()
    _check_all(quiet=True)
    changed = status.changed_stages()
    if not changed and SUMMARY.exists():
        say("nothing changed since the last run: nothing is run or charged")
    else:
        show_dvc("repro", "--quiet", "plan")
        _show_charges(load(), changed - {*MAKE_DATA, "plan"})
        show_dvc("repro")
    summary()


def summary(as_json: AsJson = False) -> None:
    """Show the results of the last run.

    Examples:
      primorl summary          a short table, and where the report and MLflow are
      primorl summary --json   metrics/summary.json itself
    """
    from primorl.base.dvc import Status
    from primorl.config.params import load
    from primorl.evaluate.description import text
    from primorl.evaluate.summary import OnlineSummary, Summary
    from primorl.tracking import viewer

    status = Status()
    found = Summary.read(SUMMARY)
    if (stale := found.other_files(MODEL, POLICY)) is not None:
        say(f"warning: {SUMMARY}: {stale}")
    warn_of_newer_data(status)
    if as_json:
        print(json.dumps(found.to_json(), indent=2, allow_nan=False))
        return
    print(text(found))
    online = OnlineSummary.read(ONLINE_METRICS) if ONLINE_METRICS.exists() else None
    if online is not None and online.met:
        low, high = online.return_ci95 or (0.0, 0.0)
        print(
            f"online   return {online.return_before:.4g} before, {online.return_mean:.4g} "
            f"[{low:.4g}, {high:.4g}] after {online.users} {online.unit}s; {online.promise}"
        )
    if REPORT.exists():
        print(f"report   {REPORT}")
    with suppress(PipelineError):  # of settings that a person edits just now
        if command := viewer(load()):
            print(f"mlflow   `{command}`")


def warn_of_newer_data(status: "Status", file: Path = SUMMARY) -> None:
    """Say that people joined, left or withdrew since the last run, which made ``file``."""
    from primorl.data.storage.rows import describe_change

    if SUMMARY.exists() and (line := describe_change(status)):
        say(f"warning: {file}: {line}")


def runs(as_json: AsJson = False) -> None:
    """List the results on the dataset of params.yaml: the best in a simulator, then the newest.

    Results are those of MLflow: returns that a simulator measured come first. Then come gains over
    today's practice by a model, which do not compare: the newest first, whatever the advice. `data`
    tells versions of the data apart; `ε by then` is what all runs had spent on the same units by
    then; `set` are settings that a person wrote and that differ.

    Examples:
      primorl runs                      a table
      primorl runs --json               with MLflow's run ids
    """
    from primorl.base.dvc import Status
    from primorl.config import params
    from primorl.tracking import results

    status = Status()
    found = results(params.load())
    warn_of_newer_data(status)
    if as_json:
        print(json.dumps(found, indent=2, allow_nan=False))
        return
    if not found:
        print("no results")
        return
    keys = dict.fromkeys(key for each in found for key in each["given"])
    told = [key for key in keys if len({str(each["given"].get(key)) for each in found}) > 1]
    rows = [_row(each, told) for each in found]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    if len(rows) > 1 and {row["by"] for row in rows} == {"model"}:
        say("gains by a model do not compare: the newest stands first")
    print(format_table(names, [[row[name] for name in names] for row in rows], right=_NUMBERS))


_SPENT = {"epsilon": "ε of policy", "delta": "δ", "spent": "ε by then"}
_NUMBERS = ("units", *_SPENT.values(), "return or gain")


def _row(each: Mapping[str, Any], told: Sequence[str]) -> dict[str, str]:
    """Return the cells of a result; ``told`` are the settings to show."""
    from primorl.privacy.accounting.rounding import at_most

    spent = {name: "–" if each[key] is None else at_most(each[key]) for key, name in _SPENT.items()}
    known = each["low"] is not None and each["high"] is not None
    digits = "+.3g" if each["by"] == "model" else ".4g"
    return {
        "data": each["data"],
        "units": "–" if each["units"] is None else str(each["units"]),
        "result": each["name"],
        **spent,
        "return or gain": "–" if each["value"] is None else f"{each['value']:{digits}}",
        "interval": f"{each['low']:{digits}} to {each['high']:{digits}}" if known else "",
        "by": "" if each["value"] is None else each["by"],
        "advice": (each["advice"] or "").replace("_", " "),
        "when": each["finished"][5:16].replace("T", " "),
        "set": " ".join(f"{key}={each['given'][key]}" for key in told if key in each["given"]),
    }


def report(
    out: Annotated[
        Path | None, path_option("FILE", "The page to write.  [default: reports/latest.html]")
    ] = None,
) -> None:
    """Write the report of the last run, with what was spent since.

    `dvc repro` writes reports/report.html from the files of the run. This command adds the ledger's
    history as it is now. The page needs no network.

    Examples:
      primorl report                       reports/latest.html
      primorl report --out for-the-board.html
    """
    from primorl.config import params
    from primorl.project import write_report

    target = out or LATEST_REPORT
    write_report(params.load(), target)
    print(target)
