"""Planted bugs of `primorl init`: what a log's draft may hold, and what a project without a clone follows."""

from tests.mutations.planted_bugs.bug import Bug

_INIT = "tests/commands/test_init.py"
_COLUMNS = "primorl/trajectories/sources/tabular/columns.py"

NEW_PROJECT = [
    Bug(
        "init-bounds-off-the-rows",
        "init",
        "primorl/setup/drafting.py",
        "reward = answers.bounds.get(answers.reward)",
        "reward = answers.bounds.get(answers.reward) or __import__('pandas').read_csv(log)['reward'].tolist()[:2]",
        "bounds are read off private rows",
        (_INIT,),
    ),
    Bug(
        "init-first-line-of-cells",
        "init",
        _COLUMNS,
        "any(_is_cell(name) for name in names)",
        "False",
        "a cell of the file is shown: the first line is taken for names though it holds a person's values",
        (_INIT,),
    ),
    Bug(
        "init-type-with-an-example",
        "init",
        _COLUMNS,
        "return [_kind(found) for found in table.schema.types]",
        "return [f'{_kind(column.type)}, such as {column[0]}' for column in table.columns]",
        "a cell of the file is shown: the types come with an example",
        (_INIT,),
    ),
    Bug(
        "init-log-beside-git",
        "init",
        "primorl/commands/init.py",
        "if log.resolve().is_relative_to(target):",
        "if False:",
        "a log in the project is accepted, where `git add` takes its rows",
        (_INIT,),
    ),
    Bug(
        "init-version-not-followed",
        "init",
        "primorl/project/template.py",
        'lines.append(f"      - {VERSION}\\n")',
        "pass",
        "stages of a project without a clone do not notice another version of primorl",
        (_INIT,),
    ),
]
