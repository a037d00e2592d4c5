"""Write the tables of benchmarks/performance.md from benchmarks/results.

python -m benchmarks.speed.tables

Every benchmark does this when it has written its results. Between ``<!-- table NAME -->`` and
``<!-- end -->`` stand the rows of ``NAME.json``. Where the file is not there, the page names the
command that will make it.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, ROOT

DOCUMENT = ROOT / "benchmarks" / "performance.md"
_PLACE = re.compile(r"(<!-- table (?P<name>\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write the tables anew."""
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


def written(document: str, results: Path = RESULTS) -> str:
    """``document`` with every table as the results have it."""
    return _PLACE.sub(lambda place: place[1] + table(results, place["name"]) + place[3], document)


def table(results: Path, name: str) -> str:
    """Markdown of one table, its machine and its command."""
    file = results / f"{name}.json"
    if not file.exists():
        return f"Still to be made: `python -m benchmarks.speed.{name}`.\n"
    rows = json.loads(file.read_text(encoding="utf-8"))
    peers = {_peer(row) for row in rows}
    shared = len(peers) == 1 and None not in peers
    lines = ["| what | ours | peer | ratio |", "|---|---|---|---|"]
    for row in rows:
        beside = "" if row["peer"] is None else _number(row["peer"], row["unit"])
        named = "" if shared or _peer(row) is None or not beside else f" ({_peer(row)})"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        lines.append(
            f"| {row['what']} | {_number(row['ours'], row['unit'])} | {beside}{named} | {ratio} |"
        )
    made = "; ".join(sorted({f"`{row['command']}` on {row['machine']}" for row in rows}))
    peer = f" Peer: {peers.pop()}." if shared else ""
    return "\n".join(lines) + f"\n\n{made}.{peer}\n"


def _peer(row: dict[str, Any]) -> str | None:
    name = row.get("peer_name", row.get("peer_is"))
    return None if name is None else str(name)


def _number(value: float, unit: str) -> str:
    return f"{value:.3g} {unit}" if abs(value) < 1000 else f"{value:,.0f} {unit}"


if __name__ == "__main__":
    main()
