"""``primorl release``."""

import argparse
from pathlib import Path

HELP = "make the bundle that may leave, or check one that came"
EXAMPLES = """examples:
  primorl release out/v1            model, policy, statement, card and what the ledger says, checked, in out/v1
  primorl release --check out/v1    a bundle from anybody: whole, consistent, nothing in it runs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", metavar="DIR", type=Path, help="the bundle's folder: new, empty or a bundle")
    parser.add_argument("--check", action="store_true", help="make nothing; check the bundle that is there")
    parser.add_argument("--void-ok", action="store_true", help="go on although the statement says not to rely on it")


def run(arguments: argparse.Namespace) -> int:
    """Make or check a bundle; return the exit status."""
    from primorl.config import params
    from primorl.evaluation.figure import guarantee
    from primorl.release import bundle
    from primorl.release.making import release

    if arguments.check:
        statement = bundle.check(arguments.directory, void_ok=arguments.void_ok)
    else:
        checked = params.load(Path("params.yaml"))
        statement = release(arguments.directory, checked, void_ok=arguments.void_ok)
    done = "sound" if arguments.check else "made and checked"
    print(f"{arguments.directory}: {done}; {guarantee(statement.to_json())}")
    if arguments.check:
        print("not checked: the returns that the cards quote, and who made the bundle")
    return 0
