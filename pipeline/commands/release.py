"""``primorl release``."""

import argparse

HELP = "not written yet"
EXAMPLES = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    raise NotImplementedError
