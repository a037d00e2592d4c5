"""Make the reference from docstrings, `primorl COMMAND --help` and the keys of ``privacy.json``."""

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Callable, Iterator
from typing import Any

import typer

import primorl
from primorl.base import PipelineError
from primorl.commands.main import app
from primorl.model.ensemble import GaussianEnsemble
from primorl.policy.loaded import ObservationError, Policy
from primorl.project import Run
from primorl.work.bill import Bill

FUNCTIONS = ("load_policy", "load_model")
CLASSES = (
    Policy,
    GaussianEnsemble,
    primorl.Project,
    Run,
    Bill,
    primorl.Statement,
    primorl.Mechanism,
)
ERRORS = (PipelineError, ObservationError)
EXAMPLES = {
    "load_policy": """\
policy = primorl.load_policy("models/policy")  # or the folder `policy` of a bundle
policy.act({"glucose": 8.2, "meal": "snack"})
policy.act(table)  # a pandas table with these columns: an action a row""",
    "load_model": """\
model = primorl.load_model("models/dynamics")
state = torch.tensor([[8.2, 0.0, 1.0]])
mean, deviation, _ = model.predict(state, torch.tensor([[0.5]]))  # change, then reward""",
    "Project": """\
project = primorl.Project("visits")
project.bill()  # the next run's charges
run = project.run(epsilon=1.0, policy={"epochs": 20})
run  # a short table
run.policy.act({"glucose": 8.2, "meal": "snack"})
run.report("for-the-board.html")
runs = project.runs()
runs[runs.epsilon <= 1]  # the best policy at ε ≤ 1 stands first""",
    "Statement": """\
from pathlib import Path

statement = primorl.Statement.read(Path("models/policy"))
print(statement.epsilon, statement.delta, statement.unit, statement.void)""",
    "Mechanism": """\
from primorl.privacy.mechanism.clipping import L2Clip

mechanism = primorl.Mechanism(
    400, "patient", 0.25, L2Clip(1.0), noise_multiplier=4.0, rounds=8, delta=1e-5
)
mechanism.compute_spent().epsilon_pld  # before anybody's data are read""",
}
"""Code by public name."""
_WIDTH = 100
_SECTION = re.compile(
    r"^(Args|Returns|Raises|Attributes|Yields):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE
)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
_INTRODUCTION = """\
# Reference

The public Python names and every command. Sizes: S dimensions of an observation, A of an action (or
the number of discrete actions), N members of the ensemble, B rows of a batch.

The keys of `params.yaml` are explained in that file, those of `datasets/NAME.yaml` in
[datasets](datasets/README.md).
This page is made by `make docs` from docstrings, from `--help` and from the class of the statement.

## Python

"""


def page() -> str:
    """Write the page as Markdown."""
    functions = [_function(getattr(primorl, name), f"primorl.{name}", "###") for name in FUNCTIONS]
    commands = "\n".join(_commands(typer.main.get_command(app), "primorl", None))
    python = "\n".join([*functions, *map(_class, (*CLASSES, *ERRORS))])
    keys = "\n".join(f"| `{key}` | {text} |" for key, text in _keys(primorl.Statement))
    table = f"| Key | Meaning |\n|---|---|\n{keys}\n"
    return f"{_INTRODUCTION}{python}\n## Commands\n\n{commands}\n## privacy.json\n\n{table}"


def _class(cls: type) -> str:
    name = f"primorl.{cls.__name__}" if cls.__name__ in primorl.__all__ else cls.__name__
    public = {
        attribute: member
        for attribute, member in vars(cls).items()
        if not attribute.startswith("_")
    }
    properties = [
        f"- `{attribute}`: {_documented(member.__doc__ or '').strip()}\n"
        for attribute, member in public.items()
        if isinstance(member, property)
    ]
    methods = [
        _function(getattr(cls, attribute), f"{cls.__name__}.{attribute}", "####")
        for attribute, member in public.items()
        if inspect.isfunction(member) or isinstance(member, classmethod)
    ]
    heading = f"### `{name}`\n\n{_documented(cls.__doc__ or '')}{_example(name)}"
    return "\n".join(
        [heading, *(["".join(["**Properties**\n\n", *properties])] if properties else []), *methods]
    )


def _function(function: Callable[..., object], name: str, level: str) -> str:
    # annotations
    signature = re.sub(
        r"(?<=: )'([^']*)'|(?<=> )'([^']*)'", r"\1\2", str(inspect.signature(function))
    )
    signature = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])|pathlib\._local\.", "", signature)
    shown = textwrap.fill(
        f"{name}{signature}", _WIDTH, subsequent_indent="    ", break_long_words=False
    )
    text = _documented(inspect.getdoc(function) or "")
    return f"{level} `{name}`\n\n```\n{shown}\n```\n\n{text}{_example(name)}"


def _example(name: str) -> str:
    code = EXAMPLES.get(name.removeprefix("primorl."))
    return "" if code is None else f"\n```python\n{code}\n```\n"


def _documented(doc: str) -> str:
    """A docstring in Google's style as Markdown."""
    text = inspect.cleandoc(doc).replace("``", "`") + "\n"
    return (
        _SECTION.sub(lambda part: f"**{part[1]}**\n\n{_entries(part[2])}\n", text).rstrip() + "\n"
    )


def _entries(block: str) -> str:
    plain = textwrap.dedent(block).strip()
    if not _ENTRY.match(plain):
        return plain + "\n"
    entries = _ENTRY.sub(lambda entry: f"\n- `{entry[1]}`: ", plain)
    return re.sub(r"\n\n+", "\n", re.sub(r"\n +", " ", entries)).strip() + "\n"


def _commands(command: Any, name: str, parent: Any) -> Iterator[str]:
    """The help of a command and of the commands below, as it is printed."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    context.terminal_width = _WIDTH
    help_text = "\n".join(line.rstrip() for line in context.get_help().splitlines())
    yield f"### `{context.command_path}`\n\n```text\n{help_text}\n```\n"
    for word, below in getattr(command, "commands", {}).items():
        yield from _commands(below, word, context)


def _keys(record: Any) -> Iterator[tuple[str, str]]:
    """Yield each key of a record class and what it means; nested keys follow (``queries[]``)."""
    if hasattr(record, "FORMAT"):
        yield "format", f"Version of this format: {record.FORMAT}."
    hints, texts = typing.get_type_hints(record), _attribute_docs(record)
    for field in dataclasses.fields(record):
        optional = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        text = texts.get(field.name, "")
        yield field.name, f"{text} Optional." if optional else text
        for inner in _inner_records(hints[field.name]):
            mark = "[]" if "tuple" in str(hints[field.name]) else ""
            yield from ((f"{field.name}{mark}.{key}", text) for key, text in _keys(inner))


def _attribute_docs(record: Any) -> dict[str, str]:
    """Return the string behind each field of a class."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(declared, ast.ClassDef)
    texts = {}
    for field, text in itertools.pairwise(declared.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            texts[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts


def _inner_records(hint: Any) -> list[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return [hint]
    return [inner for part in typing.get_args(hint) for inner in _inner_records(part)]
