"""Every command that a page names parses: subcommands, options, stages, settings, modules, targets and files exist.

`tests/smoke.py` runs the README's blocks marked ``sh``, and `tests/own_data.py` those of docs/own-data.md.
"""

from pathlib import Path

import pytest

from docs.tools.commands import Command, commands, problems, wrong_commands
from docs.tools.markdown import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_parses(page: Path) -> None:
    assert wrong_commands(page) == []


def test_the_pages_commands_are_found() -> None:
    """In blocks over several lines and with remarks behind them, and in sentences, also where a line ends inside."""
    found = {str(page.relative_to(ROOT)): commands(page.read_text(encoding="utf-8")) for page in PAGES}
    assert Command(("primorl", "release", "--check", "out/v1"), True) in found["README.md"]
    assert Command(("make", "lint", "types", "imports", "audit"), True) in found["README.md"]
    init = next(each.words for each in found["docs/own-data.md"] if each.whole and each.words[1] == "init")
    assert init[-2:] == ("--horizon", "9")
    assert Command(("primorl", "plan", "--frontier", "--figure", "FILE"), False) in found["docs/results.md"]
    assert Command(("primorl", "data", "describe", "--figure", "data.png"), True) in found["docs/reference.md"]
    assert sum(map(len, found.values())) > 400


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("primorl paln", "no command paln"),
        ("primorl ledger shwo", "no command shwo"),
        ("primorl plan --invented", "no option --invented"),
        ("primorl predict --out a.csv", "--observations is missing"),
        ("primorl runs --max-epsilon", "requires an argument"),
        ("primorl runs twice", "unexpected argument twice"),
        ("primorl sweep sweeps/gone.yaml", "no file sweeps/gone.yaml"),
        ("dvc rerpo", "DVC does not understand it"),
        ("dvc repro --invented", "DVC does not understand it"),
        ("dvc repro trian_model", "no stage trian_model"),
        ("dvc exp run -S privacy.target_espilon=1", "params.yaml has no privacy.target_espilon"),
        ("make tests", "no target tests"),
        ("python -m benchmarks.speed.gone", "no module benchmarks.speed.gone"),
        ("python -m benchmarks.speed.local_update --invented", "no option --invented"),
        ("python examples/gone.py", "no file examples/gone.py"),
        ("python examples/serve_policy.py --invented 1", "no option --invented"),
        ("torchrun --nnodes 2 -m pipeline.gone", "no module pipeline.gone"),
        ("bash .ci/gone", "no file .ci/gone"),
    ],
)
@pytest.mark.parametrize("form", ["```sh\n{}\n```\n", "Run `{}` first.\n"])
def test_what_does_not_parse_is_found(line: str, said: str, form: str) -> None:
    """The twins that must fail. In a sentence a command need not be complete."""
    (command,) = commands(form.format(line))
    found = list(problems(command))
    incomplete = ("missing", "requires", "unexpected")
    if not command.whole and any(word in said for word in incomplete):
        assert found == []
    else:
        assert any(said in problem for problem in found), found


def test_a_script_that_the_page_writes_is_there() -> None:
    page = "```sh\ncat > made.py <<'END'\nprimorl is no command here\nEND\npython made.py\n```\n"
    (command,) = commands(page)
    assert list(problems(command, page)) == []
    assert list(problems(command)) == ["no file made.py"]
