"""Small projects to cheat in: a log of patients, the stages that charge, and the commands as a
stranger calls them.
"""

import json
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

from pipeline import collect, ingest, partition, plan, train_model
from primorl.base import PipelineError
from primorl.base.reporting import StageLog
from primorl.commands import main as cli
from primorl.config import params
from tests.projects import project_settings, write_settings

LEDGER = Path(".primorl/ledger.db")


def primorl(*words: str) -> tuple[int, str, str]:
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.main(list(words))
    return status, out.getvalue(), err.getvalue()


def refused(*words: str) -> bool:
    """Whether the command ends with a status and one line that says why."""
    status, _, err = primorl(*words)
    return status != 0 and any(line.startswith("error: ") for line in err.splitlines())


def settings() -> dict[str, Any]:
    """A private run of two rounds with everybody, without a public split."""
    raw = project_settings("csv-log")
    raw["partition"] = {"public_fraction": 0.0, "public": None}
    raw["privacy"] |= {"target_epsilon": 1.5, "rounds": 2}
    raw["privacy"] |= {"sampling_probability": 1.0, "delta": 1e-3}
    raw["privacy"]["budget"] = {"epsilon": None}
    raw["dynamics"] |= {"hidden": [4], "early_stopping": {"every": 2, "patience": None}}
    raw["policy"]["starts"] = "released"
    raw["chosen"]["options"]["files"] = "log.csv"
    return raw


def write_log(ids: Sequence[str], seed: int = 0) -> None:
    """Two stays of four rows each; the rows follow from the seed, whatever the ids are."""
    generator = random.Random(seed)
    lines = ["patient,stay,time,glucose,insulin_on_board,meal,dose,reward"]
    for person in ids:
        for stay in range(2):
            for time in range(4):
                glucose, insulin = generator.uniform(4, 20), generator.uniform(0, 2)
                dose, reward = generator.random(), -generator.random()
                values = f"{glucose:.4f},{insulin:.4f},none,{dose:.4f},{reward:.4f}"
                lines.append(f"{person},{stay},{time},{values}")
    Path("log.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run(*stages: ModuleType) -> None:
    for stage in stages:
        stage.body(params.load(Path("params.yaml")), StageLog())


def prepare(ids: Sequence[str], seed: int = 0) -> None:
    write_settings(settings())
    write_log(ids, seed)
    Path("data/raw").mkdir(parents=True, exist_ok=True)
    run(collect, ingest, partition)


def train() -> str | None:
    try:
        run(plan)
        run(train_model)
    except PipelineError as refusal:
        return str(refusal)
    return None


def shown() -> list[dict[str, Any]]:
    status, out, err = primorl("ledger", "show", "--json")
    assert status == 0, err
    charges: list[dict[str, Any]] = json.loads(out)
    return charges


def tables() -> dict[str, tuple[list[str], list[tuple[Any, ...]]]]:
    """Every table of the ledger that holds rows: its columns and its rows."""
    with closing(sqlite3.connect(LEDGER)) as database:
        found = {}
        named = database.execute("select name from sqlite_master where type = 'table'")
        for (name,) in named.fetchall():
            cursor = database.execute(f'select * from "{name}" order by rowid')
            columns = [column[0] for column in cursor.description]
            if rows := cursor.fetchall():
                found[name] = (columns, rows)
        return found


def rewrite_table(name: str, rows: Sequence[Sequence[Any]]) -> None:
    with closing(sqlite3.connect(LEDGER)) as database, database:
        database.execute(f'delete from "{name}"')
        for row in rows:
            database.execute(f'insert into "{name}" values ({", ".join("?" * len(row))})', row)


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else value * 0.99 or 1e-3
    if isinstance(value, bytes):
        return value[:-1] + bytes([value[-1] ^ 1])
    digits = [i for i, letter in enumerate(value) if letter.isdigit()]
    at = digits[len(digits) // 2]  # a digit, so that what is JSON stays JSON
    return f"{value[:at]}{(int(value[at]) + 1) % 10}{value[at + 1 :]}"
