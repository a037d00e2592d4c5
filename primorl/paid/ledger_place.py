"""Where the project's ledger is. Imports no accountant, which takes a second to load."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from primorl.base.files import home
from primorl.base.paths import LEDGER
from primorl.config.params import Params, Reading


def ledger_url(params: Params | Reading) -> str:
    """SQLAlchemy's URL of the ledger's database."""
    file = sqlite_file(params)
    return (
        URL.create("sqlite", database=str(file)).render_as_string()
        if file
        else params.ledger.url or ""
    )


def sqlite_file(params: Params | Reading) -> Path | None:
    """The ledger's SQLite file; None if it is somewhere else."""
    if params.ledger.url is None:
        return home() / LEDGER
    try:
        url = make_url(params.ledger.url)
    except (ArgumentError, ValueError):
        return None  # `Ledger.open` says what is wrong with it
    plain = url.get_backend_name() == "sqlite" and url.database and not url.query
    return home() / str(url.database) if plain and url.database != ":memory:" else None
