"""Where the project's ledger is. Imports no accountant, which takes a second to load."""

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from primorl.base.files import home
from primorl.base.paths import LEDGER
from primorl.config.params import Params, Reading


def ledger_url(params: Params | Reading) -> str:
    """Return SQLAlchemy's URL of the ledger's database.

    A relative path of a SQLite file starts at the project.
    """
    declared = params.ledger.url
    if declared is None:
        return URL.create("sqlite", database=str(home() / LEDGER)).render_as_string()
    try:
        url = make_url(declared)
    except (ArgumentError, ValueError):
        return declared  # `Ledger.open` says what is wrong with it
    plain = url.get_backend_name() == "sqlite" and url.database and not url.query
    if not plain or url.database == ":memory:":
        return declared
    return URL.create("sqlite", database=str(home() / str(url.database))).render_as_string()
