"""Check the commands that the pages name: none is run, but each has to parse.

In a block of code a command is whole: its words must be complete. In a sentence it may be the name
of a command alone, such as `primorl ledger`, so only the words that are there are checked.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
import yaml

from docs.tools.markdown import ROOT
from primorl.commands.main import app
from primorl.config.params import flat, load, plain

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<'(\w+)'.*?^\1$", re.MULTILINE | re.DOTALL)
_DVC = (
    "queue",
    "repro",
    "exp",
    "push",
    "pull",
    "cache",
    "checkout",
    "commit",
    "remote",
    "gc",
    "status",
    "metrics",
    "plots",
    "params",
    "artifacts",
)


@dataclass(frozen=True)
class Command:
    """The words of a command, and whether they are all of it."""

    words: tuple[str, ...]
    whole: bool


def commands(text: str) -> list[Command]:
    """Find the commands that a page names, in blocks of code and then in sentences."""
    found = []
    for language, block in _BLOCK.findall(text):
        if language not in ("python", "yaml", "json"):
            lines = _HEREDOC.sub("", re.sub(r" *\\\n *", " ", block)).splitlines()
            found += [
                Command(words, True)
                for line in lines
                for part in line.split(" && ")
                if (words := _words(part))
            ]
    for span in re.findall(r"`([^`]+)`", _BLOCK.sub("", text)):
        if words := _words(" ".join(re.sub(r"[\[\]]", "", span).split()).split(", ")[0]):
            found.append(Command(words, False))
    return found


def _words(line: str) -> tuple[str, ...]:
    """Split a line up to two spaces or a comment; nothing if it is not a command of ours."""
    line = re.split(r" {2,}| #", line.strip())[0]
    if line.split(" ")[0] not in ("primorl", "python", "dvc", "make", "torchrun", "bash"):
        return ()
    try:
        return tuple(shlex.split(line))
    except ValueError:  # a quotation mark that is an apostrophe
        return ()


def wrong_commands(page: Path) -> list[str]:
    """Say what is wrong with the commands of ``page``; one line each."""
    text = page.read_text(encoding="utf-8")
    return [
        f"{page.name}: {' '.join(command.words)}: {problem}"
        for command in dict.fromkeys(commands(text))
        for problem in problems(command, text)
    ]


def problems(command: Command, page: str = "") -> Iterator[str]:
    """Say why a command would not work; a script that a block of ``page`` writes is there."""
    tool, *words = command.words
    if tool == "primorl":
        yield from _of_primorl(words, whole=command.whole)
    elif tool == "dvc":
        yield from _of_dvc(words)
    elif tool == "make" and (
        command.whole or len(words) == 1
    ):  # "make policy and summary again" is no command
        targets = re.findall(
            r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
        yield from (
            f"no target {word}" for word in words if "=" not in word and word not in targets
        )
    elif "-m" in words:
        place = words.index("-m") + 1
        yield from _of_module(words[place], words[place + 1 :])
    elif tool in ("python", "bash") and words and words[0] != "-c" and f"> {words[0]}" not in page:
        yield from _of_file(ROOT / words[0], words[1:])
    for word in words:  # of this project, and no placeholder like datasets/NAME.yaml
        if (
            re.fullmatch(r"[a-z][a-z0-9_/-]*/[a-z0-9_-]+\.(yaml|py)", word)
            and not (ROOT / word).exists()
        ):
            yield f"no file {word}"


def _of_primorl(words: Sequence[str], *, whole: bool) -> Iterator[str]:
    """Ask the parser of the command itself, without its types and callbacks, which look for files
    or act.
    """
    command: Any = typer.main.get_command(app)
    context = command.make_context("primorl", [], resilient_parsing=True)
    rest = [word for word in words if word != "--debug"]
    while (
        (below := getattr(command, "commands", {}))
        and rest
        and not rest[0].startswith("-")
        and not rest[0].isupper()
    ):
        name, *rest = rest
        if name not in below:
            yield f"no command {name}"
            return
        command = below[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    parameters = command.get_params(context)
    options = {
        name for parameter in parameters for name in parameter.opts + parameter.secondary_opts
    }
    yield from (
        f"no option {word}"
        for word in rest
        if word.startswith("-") and word.split("=")[0] not in options
    )
    if whole and not {"--help", "--version"} & set(rest):
        context.resilient_parsing = False
        try:
            given, left, _ = command.make_parser(context).parse_args(list(rest))
        except typer.TyperException as refused:
            yield refused.format_message()
            return
        yield from (f"unexpected argument {word}" for word in left)
        yield from (
            f"{each.opts[0]} is missing"
            for each in parameters
            if each.required and not given.get(each.name)
        )


def _of_dvc(words: Sequence[str]) -> Iterator[str]:
    """Subcommands that the pages use; stages and keys of params.yaml have to be there."""
    if words and words[0] not in _DVC:
        yield f"no command of DVC that is used here: {words[0]}"
    if words[:1] in (["repro"], ["commit"]):
        stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
        named = [word for word in words[1:] if not word.startswith("-")]
        yield from (f"no stage {word}" for word in named if word not in stages)
    for change in (after for before, after in pairwise(words) if before in ("-S", "--set-param")):
        key = change.partition("=")[0]
        if key.startswith("+"):
            if key[1:] not in dict(flat(plain(load(ROOT / "params.yaml")))):
                yield f"no setting {key[1:]}"
            continue
        block: Any = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
        for part in key.split("."):
            block = block.get(part, ...) if isinstance(block, dict) else ...
        if block is ...:
            yield f"params.yaml has no {key}"


def _of_module(module: str, words: Sequence[str]) -> Iterator[str]:
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        yield f"no module {module}"
    elif Path(found.origin).is_relative_to(ROOT) and ".venv" not in Path(found.origin).parts:
        file = Path(found.origin)
        yield from _of_file(
            file.with_name("__main__.py") if file.name == "__init__.py" else file, words
        )


def _of_file(file: Path, words: Sequence[str]) -> Iterator[str]:
    """Options that a script does not define: its parser is made while it runs, so its text has to
    do.
    """
    if not file.is_file():
        yield f"no file {file.relative_to(ROOT)}"
        return
    text = file.read_text(encoding="utf-8")
    yield from (
        f"no option {word}" for word in words if word.startswith("--") and f'"{word}"' not in text
    )
