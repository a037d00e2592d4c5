"""``primorl doctor`` and ``primorl check``: whether all is well, before and after a run."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import primorl
from primorl.base import paths
from primorl.base.errors import PipelineError
from primorl.base.files import home, sweep_leftovers
from primorl.base.template import check_version
from primorl.commands.terminal import flag, rendered

if TYPE_CHECKING:
    from primorl.config.params import Params

State = Literal["ok", "warning", "problem"]
Verdict = tuple[State, str]
"""``warning``: runs work, with a loss that the text names. ``problem``: something needs to be done."""

_LEAST_SPACE = 2**30  # bytes
_SUPPORTED = ((3, 11), (3, 12))
_SHOWN = ("torch", "numpy", "pyarrow", "dvc", "mlflow", "dp-accounting", "gymnasium")
_EXTRAS = ("", "model", "pipeline")
_INSTALL = "pip install 'primorl[pipeline]'"


@dataclass(frozen=True)
class Finding:
    """The result of one check. Where the state is not ``ok``, ``says`` names the remedy."""

    what: str
    state: State
    says: str


def doctor() -> None:
    """Check environment, packages, device, stores and project, and clean up after a killed run.

    Removes temporary copies of outputs that no running process owns; changes nothing else. Each row says ok, warning or
    problem, and what to do. Ends with status 1 if there is a problem.

    Examples:
      primorl doctor                    after a crash, a kill or a full disk, or when a command behaves strangely
    """
    findings = list(examine())
    print(
        rendered(
            ("check", "", "result"), [(found.what, found.state, found.says) for found in findings]
        )
    )
    if any(found.state == "problem" for found in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Do every check in turn, for the project in the working directory."""
    checks: dict[str, Callable[[], Verdict]] = {
        "Python": _python,
        "environment": _environment,
        "packages": _packages,
        "device": _device,
        "git": _git,
        "version": _version,
        "params.yaml": _params,
        "source": _source,
        "dvc.lock": _lock,
        "outputs": _outputs,
        "summary": _summary,
        "MLflow store": _tracking,
        "ledger": _ledger,
        "public people": _public_people,
        "secret": _secret,
        ".primorl": _permissions,
        "left-overs": _leftovers,
        "disk space": _space,
    }
    for what, check in checks.items():
        try:
            state, says = check()
        except PipelineError as wrong:
            state, says = "problem", str(wrong)
        except ModuleNotFoundError as missing:
            state, says = "problem", f"needs {missing.name}, which is not installed; {_INSTALL}"
        except OSError as wrong:
            state, says = (
                "problem",
                f"{wrong.filename or what}: {wrong.strerror or type(wrong).__name__}",
            )
        yield Finding(what, state, says)


def _python() -> Verdict:
    name = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] in _SUPPORTED:
        return "ok", name
    return "problem", f"found {name}; install Python 3.11 or 3.12"


def _environment() -> Verdict:
    """Check that the first ``python`` on PATH, with which DVC runs the stages, is this one."""
    ours, found = Path(sys.executable).parent, shutil.which("python")
    if found is not None and Path(found).absolute().parent == ours:
        return "ok", sys.prefix
    return (
        "problem",
        f"found {found or 'no python'} first on PATH; put {ours} first: source {ours}/activate",
    )


def _packages() -> Verdict:
    from packaging.requirements import Requirement

    try:
        listed = [Requirement(text) for text in metadata.requires("primorl") or ()]
    except metadata.PackageNotFoundError:
        return "problem", f"primorl itself is not installed, so its packages may be any; {_INSTALL}"
    absent, other = [], []
    for wanted in listed:
        needed = wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in _EXTRAS
        )
        if wanted.name == "primorl" or not needed:
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            absent.append(wanted.name)
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            other.append(f"{wanted.name} {version}, made for {wanted.specifier}")
    if absent:
        return "problem", f"missing: {', '.join(absent)}; {_INSTALL}"
    if other:
        return "warning", f"{'; '.join(other)}; {_INSTALL}"
    return "ok", ", ".join(f"{name} {metadata.version(name)}" for name in _SHOWN)


def _git() -> Verdict:
    here = Path.cwd()
    if shutil.which("git") is None:
        return (
            "warning",
            "not installed: `dvc exp` and versions of the project need it; install git",
        )
    if not any((folder / ".git").exists() for folder in (here, *here.parents)):
        return (
            "warning",
            "the project is in no repository, so `dvc exp` does not work; run `git init`",
        )
    return "ok", "there"


def _device() -> Verdict:
    import torch

    from primorl.config.params import load
    from primorl.paid.compute import chosen_device

    if not paths.PARAMS.exists():
        return "ok", "GPU" if torch.cuda.is_available() else "CPU"
    chosen = chosen_device(load(paths.PARAMS).compute)
    if chosen.type == "cuda":
        return "ok", f"{torch.cuda.device_count()} GPU: {torch.cuda.get_device_name(chosen)}"
    return "ok", f"CPU, {torch.get_num_threads()} threads"


def _version() -> Verdict:
    check_version(primorl.__version__)
    return "ok", primorl.__version__


def _params() -> Verdict:
    from primorl.config.params import load

    if not paths.PARAMS.exists():
        return (
            "problem",
            "not there: this folder is no project; change to the folder with params.yaml and dvc.yaml",
        )
    load()
    return "ok", "valid"


def _lock() -> Verdict:
    if not paths.PIPELINE.exists():
        return "problem", f"{paths.PIPELINE} is not there: this folder is no project"
    if paths.LOCK.exists() and _locked_outputs() is None:
        return "problem", "not valid; `git checkout dvc.lock` brings back the committed one"
    if paths.LOCK.exists():
        return "ok", "valid"
    if paths.MODEL.exists():
        return (
            "problem",
            "not there, although there is a model; `git checkout dvc.lock` or `dvc repro` brings it back",
        )
    return "ok", "not there yet; `dvc repro` writes it"


def _locked_outputs() -> list[str] | None:
    import yaml

    try:
        content: Any = yaml.safe_load(paths.LOCK.read_text(encoding="utf-8"))
        return [
            output["path"]
            for stage in content["stages"].values()
            for output in stage.get("outs", [])
        ]
    except (
        OSError,
        ValueError,
        yaml.YAMLError,
        AttributeError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        return None


def _outputs() -> Verdict:
    """Find outputs that were made and are gone; DVC removes them before it runs a stage."""
    from primorl.base.dvc import missing_outputs

    outputs = _locked_outputs()
    if outputs is None:
        return "ok", "nothing was made yet"
    missing = missing_outputs()
    if not missing:
        return "ok", f"all {len(outputs)} are there"
    if len(missing) == len(outputs):
        return "ok", "none is here; `dvc pull`, `dvc checkout` or `dvc repro` brings them"
    return "problem", f"{', '.join(missing)} missing; `dvc checkout` brings back what was made"


def _summary() -> Verdict:
    from primorl.commands.results import other_files
    from primorl.evaluate.summary import Summary

    if not paths.SUMMARY.exists():
        return "ok", "not there yet"
    stale = other_files(Summary.read(paths.SUMMARY))
    return (
        ("ok", "of the model and the policy that are here") if stale is None else ("problem", stale)
    )


def _tracking() -> Verdict:
    from primorl.config.params import load
    from primorl.tracking.store import check_store

    if not paths.PARAMS.exists():
        return "ok", "no project, no store"
    return "ok", check_store(load(paths.PARAMS))


def _secret() -> Verdict:
    from primorl.data.storage.schema import Manifest
    from primorl.paid.accounts import check_secret

    secret = home() / paths.SECRET
    if secret.exists() and secret.stat().st_mode & 0o077:
        return "problem", f"others may read {secret}; chmod 600 {secret}"
    if not secret.exists() and (home() / paths.LEDGER_HEAD).exists():
        return (
            "problem",
            f"{secret}: not there, and without it the ledger cannot be read; put it back from its backup",
        )
    if paths.MANIFEST.exists():
        check_secret(Manifest.load(paths.MANIFEST), paths.PARTITIONS)
    return "ok", "there" if secret.exists() else "not there yet; the first run makes one"


def _source() -> Verdict:
    from primorl.config.params import load
    from primorl.data.sources.tabular.watch import changed

    if not paths.PARAMS.exists():
        return "ok", "no project, no dataset"
    params = load()
    said = changed(params.dataset, params.chosen)
    if said is None:
        return "ok", "as it was collected" if paths.RAW.exists() else "not collected yet"
    return "problem", said


def _public_people() -> Verdict:
    from primorl.config.params import load_reading
    from primorl.paid.accounts import open_public

    if paths.PARAMS.exists() and paths.MANIFEST.exists():
        open_public(load_reading())
    return "ok", "nobody in the public split was charged for as private"


def _ledger() -> Verdict:
    from primorl.config.params import load_reading
    from primorl.paid.accounts import begun_ledger
    from primorl.paid.missing_charges import refuse_missing_charges

    if not paths.PARAMS.exists():
        return "ok", "no project, no ledger"
    opened = begun_ledger(load_reading())
    if opened is None:
        refuse_missing_charges(None)
        return "ok", "nothing was charged yet"
    with closing(opened) as ledger:
        records = ledger.verify()
        refuse_missing_charges(ledger)
        return "ok", f"complete: {records} records"


def _permissions() -> Verdict:
    state = home() / paths.STATE
    if not state.exists():
        return "ok", "not there yet; the first run makes it"
    if state.stat().st_mode & 0o077:
        return "problem", f"others may read {state}; chmod 700 {state}"
    return "ok", "only its owner may read it"


def _leftovers() -> Verdict:
    removed = sweep_leftovers(Path.cwd())
    return "ok", f"removed {len(removed)}: {', '.join(map(str, removed))}" if removed else "none"


def _space() -> Verdict:
    free = shutil.disk_usage(Path.cwd()).free
    text = f"{free / 2**30:.1f} GiB free"
    return (
        ("ok", text)
        if free >= _LEAST_SPACE
        else ("problem", f"{text}; make room for at least 1 GiB")
    )


def check(
    charges: Annotated[
        bool,
        flag(
            "--charges",
            "Say what `dvc repro` would charge; on a terminal, ask where a budget is near.",
        ),
    ] = False,
) -> None:
    """Check params.yaml, datasets and a log's columns before `dvc repro`. Runs nothing and changes nothing.

    DVC itself may remove outputs before it finds a mistake in params.yaml; this command finds it first.

    Examples:
      primorl check && dvc repro            run the pipeline only if the settings are valid
      primorl check --charges && dvc repro  say first what it charges, and ask where a budget is nearly used up
    """
    from primorl.config.datasets import TabularDataset
    from primorl.config.params import load
    from primorl.data.sources.tabular.watch import changed

    check_version(primorl.__version__)
    params = load()
    _check_keys_of_stages(params)
    if params.online.asked:
        from primorl.paid.arrivals import Arrivals

        if params.chosen.environment is None:
            raise PipelineError(
                f"params.yaml: online.users and online.arrivals: found users, and datasets/{params.dataset}.yaml names "
                "no environment that could simulate them; set both to null"
            )
        Arrivals.of(params)
    if (said := changed(params.dataset, params.chosen)) is not None:
        raise PipelineError(said)
    print("params.yaml and the datasets are valid")
    if isinstance(params.chosen, TabularDataset):
        from primorl.data.sources.tabular.source import Tabular

        there = Tabular(params.dataset, params.chosen).check_columns()
        named = params.chosen.options.files
        print(
            f"{named}: {'has the columns of the entry' if there else 'not there yet, so its columns are unchecked'}"
        )
    if charges:
        _say_charges(params)


def _check_keys_of_stages(params: "Params") -> None:
    """Refuse an older params.yaml without a key of dvc.yaml: DVC finds that out after it removed outputs."""
    from primorl.config.suggestions import leaves

    stages = Path("dvc.yaml").read_text(encoding="utf-8") if Path("dvc.yaml").exists() else ""
    if missing := sorted(
        key for key in leaves().keys() - params.origins.keys() if f"- {key}\n" in stages
    ):
        raise PipelineError(
            f"params.yaml: {', '.join(missing)}: missing, and dvc.yaml asks for it; add it as a new project's "
            "params.yaml has it (total_epsilon: auto, train_on: private)"
        )


def _say_charges(params: "Params") -> None:
    """Print the charges of the next run; on a terminal, ask whether to go on where a budget is nearly used up."""
    from primorl.paid.bill import UNKNOWN, preview

    found = preview(params)
    if found is None:
        print(UNKNOWN)
        return
    print(found)
    if found.near and sys.stdin.isatty() and sys.stdout.isatty() and not typer.confirm("Go on?"):
        raise PipelineError("stopped as asked: nothing was run, nothing was charged")
