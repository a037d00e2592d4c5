"""``primorl``: look at the data, plan a guarantee, read the ledger, audit, release."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from primorl.project.errors import PipelineError

COMMANDS = ("data", "plan", "ledger", "audit", "release")


def main(words: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit status.

    Errors become one line on stderr. The message of an exception nobody foresaw may quote private values, so only
    its type and place are shown.
    """
    arguments = _parser().parse_args(words)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:  # whoever reads the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as wrong:
        print(f"error: {_explained(wrong, arguments.command)}", file=sys.stderr)
        if arguments.debug:
            traceback.print_exception(wrong)
        return 1


def _explained(wrong: Exception, command: str) -> str:
    if isinstance(wrong, PipelineError):
        return str(wrong)
    if isinstance(wrong, OSError):
        return f"{wrong.filename or command}: {wrong.strerror or type(wrong).__name__}"
    frame = traceback.extract_tb(wrong.__traceback__)[-1]
    return f"{command}: unforeseen {type(wrong).__name__} at {frame.filename.rpartition('/')[2]}:{frame.lineno}"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the words of a command in one line, as every error here is said."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see `{self.prog} --help`\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="primorl", description="Look at the data, plan a guarantee, read the ledger, audit, release.")
    common = _Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="show tracebacks (inside the trust boundary only)")
    parsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"primorl.commands.{name}")
        sub = parsers.add_parser(
            name,
            help=command.HELP,
            description=command.HELP,
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=[common],
        )
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
