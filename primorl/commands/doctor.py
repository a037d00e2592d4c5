"""``primorl doctor``."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from primorl.commands.printing import rendered
from primorl.project.errors import PipelineError
from primorl.project.paths import LEDGER_HEAD, LOCK, MANIFEST, PARAMS, PARTITIONS, PIPELINE, SECRET, SUMMARY

_HELP = """Check the project, and clean up after a killed run.

Removes temporary copies of outputs that no running process owns; changes nothing else. Ends with status 1 if something
needs to be done, which the table then names.

\b
Examples:
  primorl doctor                    after a crash, a kill or a full disk, or when a command behaves strangely
"""
_SUPPORTED = ((3, 11), (3, 12))
_LEAST_SPACE = 2**30  # bytes


@dataclass(frozen=True)
class Finding:
    """The result of one check. ``healthy`` is false if something needs to be done, which ``says`` then names."""

    what: str
    healthy: bool
    says: str


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("doctor", help=_HELP)(_run)


def _run() -> None:
    findings = list(examine(Path.cwd()))
    rows = [(finding.what, "ok" if finding.healthy else "TO DO", finding.says) for finding in findings]
    print(rendered(("check", "", "result"), rows))
    if not all(finding.healthy for finding in findings):
        raise typer.Exit(1)


def examine(root: Path) -> Iterator[Finding]:
    """Every check in turn, for the project in ``root``."""
    checks: tuple[tuple[str, Callable[[Path], tuple[bool, str]]], ...] = (
        ("Python", _python),
        ("stages' Python", _stages_python),
        ("params.yaml", _params),
        ("dvc.lock", _lock),
        ("outputs", _outputs),
        ("summary", _summary),
        ("secret", _secret),
        ("ledger", _ledger),
        ("left-overs", _leftovers),
        ("disk space", _space),
    )
    for what, check in checks:
        try:
            healthy, says = check(root)
        except PipelineError as wrong:
            healthy, says = False, str(wrong)
        except ModuleNotFoundError as missing:
            healthy, says = False, f"needs {missing.name}, which is not installed; pip install 'primorl[pipeline]'"
        except OSError as wrong:
            healthy, says = False, f"{wrong.filename or what}: {wrong.strerror or type(wrong).__name__}"
        yield Finding(what, healthy, says)


def _python(root: Path) -> tuple[bool, str]:
    del root
    version = sys.version_info[:2]
    name = ".".join(map(str, sys.version_info[:3]))
    return (True, name) if version in _SUPPORTED else (False, f"found {name}; install Python 3.11 or 3.12")


def _stages_python(root: Path) -> tuple[bool, str]:
    """DVC runs the stages with the first ``python`` on PATH, which must be that of this environment."""
    import shutil

    del root
    ours, found = Path(sys.executable).parent, shutil.which("python")
    if found is not None and Path(found).absolute().parent == ours:
        return True, found
    return False, f"found {found or 'none'} first on PATH; put {ours} first: source {ours}/activate"


def _params(root: Path) -> tuple[bool, str]:
    from primorl.config.checking import check_project

    if not (root / PARAMS).exists():
        return False, "not there: this folder is no project; change to the folder with params.yaml and dvc.yaml"
    check_project()
    return True, "valid"


def _lock(root: Path) -> tuple[bool, str]:
    import yaml

    if not (root / PIPELINE).exists():
        return False, f"{PIPELINE} is not there: this folder is no project"
    if not (root / LOCK).exists():
        if (root / "models" / "dynamics").exists():
            return False, "not there, although there is a model; `git checkout dvc.lock` or `dvc repro` brings it back"
        return True, "not there yet; `dvc repro` writes it"
    try:
        _locked_outputs(root)
    except (UnicodeDecodeError, yaml.YAMLError, AttributeError, KeyError, TypeError, RecursionError):
        return False, "not valid; `git checkout dvc.lock` brings back the committed one"
    return True, "valid"


def _locked_outputs(root: Path) -> list[str]:
    """The outputs that ``dvc.lock`` names."""
    import yaml

    content: Any = yaml.safe_load((root / LOCK).read_text(encoding="utf-8"))
    return [output["path"] for stage in content["stages"].values() for output in stage.get("outs", [])]


def _outputs(root: Path) -> tuple[bool, str]:
    """Outputs that were made and are gone; DVC removes them before it runs a stage."""
    from primorl.project.restoration import missing_outputs

    if not (root / LOCK).exists() or not _lock(root)[0]:
        return True, "nothing was made yet"
    outputs = _locked_outputs(root)
    missing = missing_outputs()
    if not missing:
        return True, f"all {len(outputs)} are there"
    if len(missing) == len(outputs):
        return True, "none is here; `dvc pull`, `dvc checkout` or `dvc repro` brings them"
    return False, f"{', '.join(missing)} missing; `dvc checkout` brings back what was made"


def _summary(root: Path) -> tuple[bool, str]:
    """Whether the results are of the model and the policy that are here."""
    from primorl.commands.summary import other_files
    from primorl.evaluation.summary import Summary

    if not (root / SUMMARY).exists():
        return True, "not there yet"
    stale = other_files(Summary.read(root / SUMMARY))
    return (True, "of the model and the policy that are here") if stale is None else (False, stale)


def _secret(root: Path) -> tuple[bool, str]:
    from primorl.project.files import home
    from primorl.setup.accounts import check_secret
    from primorl.trajectories.storage.manifest import Manifest

    secret, head = home() / SECRET, home() / LEDGER_HEAD
    if secret.exists():
        if secret.stat().st_mode & 0o077:
            return False, f"others may read {secret}; chmod 600 {secret}"
        if (root / MANIFEST).exists():
            check_secret(Manifest.load(root / MANIFEST), PARTITIONS)
        return True, "there"
    if head.exists():
        return False, f"{secret}: not there, and without it the ledger cannot be read; put it back from its backup"
    if (root / MANIFEST).exists():
        check_secret(Manifest.load(root / MANIFEST), PARTITIONS)
    return True, "not there yet; the first run makes one"


def _ledger(root: Path) -> tuple[bool, str]:
    from contextlib import closing

    from primorl.config.params import load_reading
    from primorl.setup.accounts import begun_ledger
    from primorl.setup.losses import refuse_losses

    if not (root / PARAMS).exists():
        return True, "no project, no ledger"
    opened = begun_ledger(load_reading())
    if opened is None:
        refuse_losses(None)
        return True, "nothing was charged yet"
    with closing(opened) as ledger:
        records = ledger.verify()
        refuse_losses(ledger)
        return True, f"complete: {records} records"


def _leftovers(root: Path) -> tuple[bool, str]:
    """Remove what a killed stage left, private rows among it."""
    from primorl.project import files

    removed = files.sweep_leftovers(root)
    return True, f"removed {len(removed)}: {', '.join(map(str, removed))}" if removed else "none"


def _space(root: Path) -> tuple[bool, str]:
    import shutil

    free = shutil.disk_usage(root).free
    text = f"{free / 2**30:.1f} GiB free"
    return (True, text) if free >= _LEAST_SPACE else (False, f"{text}; make room for at least 1 GiB")
