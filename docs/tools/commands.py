"""The commands that the pages name, and what is wrong with them: none is run, but each has to parse.

In a block of code a command is whole: its words must be complete. In a sentence it may be the name of a command alone,
such as `primorl select`, so only the words that are there are checked.
"""

import io
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
import yaml

from docs.tools.markdown import ROOT
from primorl.commands.main import app, one_each

_TOOLS = ("primorl", "python", "dvc", "make", "torchrun", "bash")
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`]+)`")
_HEREDOC = re.compile(r"<<'(\w+)'.*?^\1$", re.MULTILINE | re.DOTALL)
_OTHER_LANGUAGES = ("python", "yaml", "json")
_TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """The words of a command, and whether they are all of it."""

    words: tuple[str, ...]
    whole: bool


def commands(text: str) -> list[Command]:
    """The commands that a page names, in blocks of code and then in sentences."""
    found = []
    for language, block in _BLOCK.findall(text):
        if language not in _OTHER_LANGUAGES:
            lines = _HEREDOC.sub("", re.sub(r" *\\\n *", " ", block)).splitlines()
            found += [Command(words, True) for line in lines for part in line.split(" && ") if (words := _words(part))]
    for span in _SPAN.findall(_BLOCK.sub("", text)):
        if words := _words(" ".join(re.sub(r"[\[\]]", "", span).split()).split(", ")[0]):
            found.append(Command(words, False))
    return found


def _words(line: str) -> tuple[str, ...]:
    """The words of a line, up to two spaces or a comment; nothing if it is not a command of ours."""
    line = re.split(r" {2,}| #", line.strip())[0]
    if line.split(" ")[0] not in _TOOLS:
        return ()
    try:
        return tuple(shlex.split(line))
    except ValueError:  # a quotation mark that is an apostrophe
        return ()


def wrong_commands(page: Path) -> list[str]:
    """What is wrong with the commands of ``page``; one line each."""
    text = page.read_text(encoding="utf-8")
    return [
        f"{page.name}: {' '.join(command.words)}: {problem}"
        for command in dict.fromkeys(commands(text))
        for problem in problems(command, text)
    ]


def problems(command: Command, page: str = "") -> Iterator[str]:
    """Why a command would not work.

    Args:
        command: as the page has it.
        page: its text; a script that a block of it writes is there.
    """
    tool, *words = command.words
    if tool == "primorl":
        yield from _of_primorl(words, whole=command.whole)
    elif tool == "dvc":
        yield from _of_dvc(words, whole=command.whole)
    elif tool == "make" and (command.whole or len(words) == 1):  # "make policy and summary again" is no command
        targets = _TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
        yield from (f"no target {word}" for word in words if "=" not in word and word not in targets)
    elif "-m" in words and (tool == "torchrun" or words[0] == "-m"):
        place = words.index("-m") + 1
        yield from _of_module(words[place], words[place + 1 :])
    elif tool in ("python", "bash") and words and words[0] != "-c" and f"> {words[0]}" not in page:
        yield from _of_script(words[0], words[1:])
    for word in words:  # of this project, and no placeholder like sweeps/NAME.yaml
        if re.fullmatch(r"[a-z][a-z0-9_/-]*/[a-z0-9_-]+\.(yaml|py)", word) and not (ROOT / word).exists():
            yield f"no file {word}"


def _of_primorl(words: Sequence[str], *, whole: bool) -> Iterator[str]:
    """By the parser of the command itself, without its types and callbacks, which look for files or act."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("primorl", [], resilient_parsing=True)
    rest = one_each([word for word in words if word != "--debug"])
    while subcommands := getattr(command, "commands", {}):
        if not rest or rest[0].startswith("-") or rest[0].isupper():
            break
        name, *rest = rest
        if name not in subcommands:
            yield f"no command {name}"
            return
        command = subcommands[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    options = {name for parameter in command.get_params(context) for name in parameter.opts + parameter.secondary_opts}
    yield from (f"no option {word}" for word in rest if word.startswith("-") and word.split("=")[0] not in options)
    if whole and not {"--help", "--version"} & set(rest):
        context.resilient_parsing = False
        try:
            given, left, _ = command.make_parser(context).parse_args(list(rest))
        except typer.TyperException as refused:
            yield refused.format_message()
            return
        needed = [parameter for parameter in command.get_params(context) if parameter.required]
        yield from (f"unexpected argument {word}" for word in left)
        yield from (f"{parameter.opts[0]} is missing" for parameter in needed if not given.get(parameter.name))


def _of_dvc(words: Sequence[str], *, whole: bool) -> Iterator[str]:
    """By DVC's own parser; stages and keys of params.yaml have to be there."""
    given = _parsed_by_dvc(words) if whole else next(filter(None, map(_parsed_by_dvc, _with_more(words))), None)
    if given is None:
        yield "DVC does not understand it"
        return
    if words[0] in ("repro", "commit"):
        stages = _yaml("dvc.yaml")["stages"]
        yield from (f"no stage {target}" for target in given.targets if target not in stages)
    for change in getattr(given, "set_param", None) or ():
        block: Any = _yaml("params.yaml")
        for part in change.partition("=")[0].split("."):
            block = block.get(part, ...) if isinstance(block, dict) else ...
        if block is ...:
            yield f"params.yaml has no {change.partition('=')[0]}"


def _with_more(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """A command of a sentence with no, one or two further words, such as the name of a remote."""
    yield from ([*words, *["x"] * more] for more in range(3))


def _parsed_by_dvc(words: Sequence[str]) -> Any:
    """What DVC's parser makes of the words; None: nothing. Its complaints are not printed."""
    from dvc.cli import parser

    parser.logger.disabled = True
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            return parser.get_main_parser().parse_args(list(words))
    except (parser.DvcParserError, SystemExit):
        return None
    finally:
        parser.logger.disabled = False


def _of_module(module: str, words: Sequence[str]) -> Iterator[str]:
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        yield f"no module {module}"
    elif Path(found.origin).is_relative_to(ROOT) and ".venv" not in Path(found.origin).parts:
        file = Path(found.origin)
        yield from _options(file.with_name("__main__.py") if file.name == "__init__.py" else file, words)


def _of_script(name: str, words: Sequence[str]) -> Iterator[str]:
    if not (ROOT / name).is_file():
        yield f"no file {name}"
    else:
        yield from _options(ROOT / name, words)


def _options(file: Path, words: Sequence[str]) -> Iterator[str]:
    """Options that a script does not define: its parser is made while it runs, so its text has to do."""
    if not file.exists():
        yield f"no file {file.relative_to(ROOT)}"
        return
    text = file.read_text(encoding="utf-8")
    yield from (f"no option {word}" for word in words if word.startswith("--") and f'"{word}"' not in text)


@cache
def _yaml(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
