"""``primorl``: plan a guarantee, use the policy, read the ledger, release.

The modules of the subcommands import nothing heavy; their functions import what they need when they
run.
"""

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

import primorl
from primorl.base import PipelineError, say
from primorl.base.files import COPIES, PARAMS
from primorl.base.processes import collect_garbage_rarely
from primorl.base.reporting import INTERRUPTED, explain, keep_warnings
from primorl.commands import init, ledger, policies, runs
from primorl.commands.terminal import add_command, flag, in_project

_COMMANDS = (
    init.init,
    runs.check,
    runs.plan,
    runs.run,
    runs.summary,
    runs.report,
    runs.runs,
    policies.predict,
    policies.release,
)
"""In the order of ``primorl --help``, where the groups come last."""
_USAGE = 2  # exit status

app = typer.Typer(
    name="primorl",
    add_completion=False,
    help="Plan a guarantee, run, use the policy, read the ledger, release.",
    epilog="`primorl COMMAND --help` shows the options of a command and examples.",
    rich_markup_mode=None,  # rich would wrap the examples, and drop what stands in square brackets
)
for command in _COMMANDS:
    add_command(app, command.__name__, command)
ledger.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"primorl {primorl.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, flag("--debug", "Show tracebacks, which may quote private values. Goes anywhere.")
    ] = False,
) -> None: ...


def main(words: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    An error is one line on stderr that starts with ``error:``. The message of an unforeseen
    exception may quote private values, so only its type and place are shown, unless ``--debug`` is
    given.

    Args:
        words: the arguments of the command line; None: those of this process.

    Returns:
        The exit status: 0, 1 for an error, 2 for a command line that makes no sense, 130 after
            Ctrl-C.
    """
    if words is None:
        collect_garbage_rarely()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal need not be able to write δ
    given = list(sys.argv[1:] if words is None else words)
    debug = "--debug" in given
    given = [word for word in given if word != "--debug"]
    try:
        command = typer.main.get_command(app)
        with (
            in_project(),
            command.make_context("primorl", given) as context,
            warnings.catch_warnings(),
        ):
            keep_warnings()
            warnings.filterwarnings("once", module="primorl")
            warnings.showwarning = _print_warning  # type: ignore[assignment]
            try:
                command.invoke(context)
            finally:
                _warn_of_a_changed_source(_name(given))
        return 0
    except typer.Exit as done:
        return done.exit_code
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):  # Abort: at a question
        say("error: interrupted")
        return INTERRUPTED
    except typer.TyperException as wrong:
        say(f"error: {_usage(wrong)}")
        return _USAGE
    except Exception as wrong:
        say(f"error: {explain(_name(given), wrong)}")
        if debug:
            traceback.print_exception(wrong)
        return 1


def _print_warning(message: Warning | str, *_: Any) -> None:
    """Print one line, without the place in the code that Python's own has."""
    say(f"warning: {message}")


def _warn_of_a_changed_source(command: str) -> None:
    """Say that a log's files changed since they were collected; `check` and `run` refuse it."""
    if command in ("check", "run") or not (PARAMS.exists() and COPIES.exists()):
        return
    from primorl.config.params import load
    from primorl.data.sources.log_paths import describe_edits

    with suppress(PipelineError):  # of params.yaml; the command itself has said so
        params = load()
        if said := describe_edits(params.dataset, params.chosen):
            say(f"warning: {said}")


def _name(words: Sequence[str]) -> str:
    return next((word for word in words if not word.startswith("-")), "primorl")


def _usage(wrong: typer.TyperException) -> str:
    context = getattr(wrong, "ctx", None)
    path = "primorl" if context is None else context.command_path
    said = " ".join(wrong.format_message().split()).rstrip(".")
    said = said.replace("Input should be greater than or equal to", "allowed is at least")
    said = said.replace("Input should be less than or equal to", "allowed is at most")
    return f"{said}; see `{path} --help`"


if __name__ == "__main__":
    sys.exit(main())
