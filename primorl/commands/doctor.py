"""``primorl doctor``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from primorl.commands import doctor_environment as here
from primorl.commands.doctor_environment import State, Verdict
from primorl.commands.printing import rendered
from primorl.project.errors import PipelineError
from primorl.project.paths import LEDGER_HEAD, LOCK, MANIFEST, PARAMS, PARTITIONS, PIPELINE, SECRET, SUMMARY

_HELP = """Check environment, packages, device, stores and project, and clean up after a killed run.

Removes temporary copies of outputs that no running process owns; changes nothing else. Each row says ok, warning or
problem, and what to do. Ends with status 1 if there is a problem.

\b
Examples:
  primorl doctor                    after a crash, a kill or a full disk, or when a command behaves strangely
"""
_LEAST_SPACE = 2**30  # bytes


@dataclass(frozen=True)
class Finding:
    """The result of one check. Where the state is not ``ok``, ``says`` names what to do."""

    what: str
    state: State
    says: str


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("doctor", help=_HELP)(_run)


def _run() -> None:
    findings = list(examine(Path.cwd()))
    print(rendered(("check", "", "result"), [(found.what, found.state, found.says) for found in findings]))
    if any(found.state == "problem" for found in findings):
        raise typer.Exit(1)


def examine(root: Path) -> Iterator[Finding]:
    """Every check in turn, for the project in ``root``."""
    checks: tuple[tuple[str, Callable[[Path], Verdict]], ...] = (
        ("Python", here.python),
        ("environment", here.environment),
        ("packages", here.packages),
        ("device", here.device),
        ("git", here.git),
        ("version", here.version),
        ("params.yaml", _params),
        ("dvc.lock", _lock),
        ("outputs", _outputs),
        ("summary", _summary),
        ("MLflow store", here.tracking),
        ("ledger", _ledger),
        ("secret", _secret),
        (".primorl", here.permissions),
        ("left-overs", _leftovers),
        ("disk space", _space),
    )
    for what, check in checks:
        try:
            state, says = check(root)
        except PipelineError as wrong:
            state, says = "problem", str(wrong)
        except ModuleNotFoundError as missing:
            state, says = "problem", f"needs {missing.name}, which is not installed; pip install 'primorl[pipeline]'"
        except OSError as wrong:
            state, says = "problem", f"{wrong.filename or what}: {wrong.strerror or type(wrong).__name__}"
        yield Finding(what, state, says)


def _params(root: Path) -> Verdict:
    from primorl.config.checking import check_project

    if not (root / PARAMS).exists():
        return "problem", "not there: this folder is no project; change to the folder with params.yaml and dvc.yaml"
    check_project()
    return "ok", "valid"


def _lock(root: Path) -> Verdict:
    import yaml

    if not (root / PIPELINE).exists():
        return "problem", f"{PIPELINE} is not there: this folder is no project"
    if not (root / LOCK).exists():
        if (root / "models" / "dynamics").exists():
            return (
                "problem",
                "not there, although there is a model; `git checkout dvc.lock` or `dvc repro` brings it back",
            )
        return "ok", "not there yet; `dvc repro` writes it"
    try:
        _locked_outputs(root)
    except (UnicodeDecodeError, yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError):
        return "problem", "not valid; `git checkout dvc.lock` brings back the committed one"
    return "ok", "valid"


def _locked_outputs(root: Path) -> list[str]:
    """The outputs that ``dvc.lock`` names."""
    import yaml

    content: Any = yaml.safe_load((root / LOCK).read_text(encoding="utf-8"))
    return [output["path"] for stage in content["stages"].values() for output in stage.get("outs", [])]


def _outputs(root: Path) -> Verdict:
    """Outputs that were made and are gone; DVC removes them before it runs a stage."""
    from primorl.project.restoration import missing_outputs

    if not (root / LOCK).exists() or _lock(root)[0] != "ok":
        return "ok", "nothing was made yet"
    outputs = _locked_outputs(root)
    missing = missing_outputs()
    if not missing:
        return "ok", f"all {len(outputs)} are there"
    if len(missing) == len(outputs):
        return "ok", "none is here; `dvc pull`, `dvc checkout` or `dvc repro` brings them"
    return "problem", f"{', '.join(missing)} missing; `dvc checkout` brings back what was made"


def _summary(root: Path) -> Verdict:
    """Whether the results are of the model and the policy that are here."""
    from primorl.commands.summary import other_files
    from primorl.evaluation.summary import Summary

    if not (root / SUMMARY).exists():
        return "ok", "not there yet"
    stale = other_files(Summary.read(root / SUMMARY))
    return ("ok", "of the model and the policy that are here") if stale is None else ("problem", stale)


def _secret(root: Path) -> Verdict:
    from primorl.project.files import home
    from primorl.setup.accounts import check_secret
    from primorl.trajectories.storage.manifest import Manifest

    secret, head = home() / SECRET, home() / LEDGER_HEAD
    if secret.exists():
        if secret.stat().st_mode & 0o077:
            return "problem", f"others may read {secret}; chmod 600 {secret}"
        if (root / MANIFEST).exists():
            check_secret(Manifest.load(root / MANIFEST), PARTITIONS)
        return "ok", "there"
    if head.exists():
        return "problem", f"{secret}: not there, and without it the ledger cannot be read; put it back from its backup"
    if (root / MANIFEST).exists():
        check_secret(Manifest.load(root / MANIFEST), PARTITIONS)
    return "ok", "not there yet; the first run makes one"


def _ledger(root: Path) -> Verdict:
    from contextlib import closing

    from primorl.config.params import load_reading
    from primorl.setup.accounts import begun_ledger
    from primorl.setup.losses import refuse_losses

    if not (root / PARAMS).exists():
        return "ok", "no project, no ledger"
    opened = begun_ledger(load_reading())
    if opened is None:
        refuse_losses(None)
        return "ok", "nothing was charged yet"
    with closing(opened) as ledger:
        records = ledger.verify()
        refuse_losses(ledger)
        return "ok", f"complete: {records} records"


def _leftovers(root: Path) -> Verdict:
    """Remove what a killed stage left, private rows among it."""
    from primorl.project import files

    removed = files.sweep_leftovers(root)
    return "ok", f"removed {len(removed)}: {', '.join(map(str, removed))}" if removed else "none"


def _space(root: Path) -> Verdict:
    import shutil

    free = shutil.disk_usage(root).free
    text = f"{free / 2**30:.1f} GiB free"
    return ("ok", text) if free >= _LEAST_SPACE else ("problem", f"{text}; make room for at least 1 GiB")
