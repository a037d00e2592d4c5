"""``primorl release``."""

from pathlib import Path
from typing import Annotated

import typer

from primorl.commands.folders import given_path
from primorl.project.paths import PARAMS

_HELP = """Make the bundle that may leave, or check one that came.

\b
Examples:
  primorl release out/v1            model, policy, statement, card and what the ledger says, checked, in out/v1
  primorl release --check out/v1    check a bundle from anybody: complete, consistent, and nothing in it runs
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("release", help=_HELP)(_run)


def _run(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=given_path, help="The bundle's folder: new, empty or a bundle.")
    ],
    check: Annotated[bool, typer.Option("--check", help="Make nothing; check the bundle in DIR.")] = False,
    void_ok: Annotated[
        bool, typer.Option("--void-ok", help="Go on although the statement says not to rely on it.")
    ] = False,
) -> None:
    from primorl.config import params
    from primorl.evaluation.wording import guarantee
    from primorl.release import bundle
    from primorl.release.making import release

    if check:
        statement = bundle.check(directory, void_ok=void_ok)
    else:
        statement = release(directory, params.load_reading(PARAMS), void_ok=void_ok)
    done = "sound" if check else "made and checked"
    print(f"{directory}: {done}; {guarantee(statement.to_json())}")
    if check:
        print("not checked: the returns that the cards quote, and who made the bundle")
