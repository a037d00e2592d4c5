"""A first day with an own log: `python -m benchmarks.first_day --wheel FILE --folder FOLDER [--constraints FILE]`.

It runs every command of docs/first-day.md in an empty folder and a new virtual environment, writes what they print into
that page, and the seconds that each took into `benchmarks/results/first_day.json`. The log is invented.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, machine
from docs.tools.markdown import ROOT

PAGE = ROOT / "docs" / "first-day.md"
FIRST, LAST = "<!-- transcript -->\n", "<!-- /transcript -->"
_SHOWN_AS, _WIDTH = "~/first-day", 118
_AS_IT_IS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
# DVC says these after every stage.
_REPEATED = re.compile(
    r"^(To track the changes|\tgit add|To enable auto|\tdvc config|Use `dvc push`|(Updating|Generating) lock file"
    r"|.*: taken from suggestions)"
)
_TODAY = """patient,encounter,visit_time,haemoglobin,ferritin,weight_gain,access
M90001,1,2026-11-02 08:00,9.1,300,2.0,fistula
M90001,1,2026-11-09 08:10,9.6,310,2.2,fistula
M90002,2,2026-11-09 08:20,11.6,500,3.1,catheter
M90003,3,2026-11-09 08:30,,500,3.1,catheter
M90004,4,2026-11-09 08:40,9.0,500,3.1,PICC
M90005,5,2026-11-09 08:50,91,500,3.1,graft
"""


@dataclass(frozen=True)
class Step:
    """A part of the page: what is done, and in which folder below the working one."""

    title: str
    command: str
    inside: str = "project"


STEPS = (
    Step(
        "Install",
        "python3.11 -m venv .venv && source .venv/bin/activate\n"
        "pip install --quiet 'primorl-0.1.0-py3-none-any.whl[pipeline]'",
        "",
    ),
    Step(
        "A project",
        "primorl init project --csv visits.csv --name anaemia \\\n"
        "    --unit patient --trajectory encounter --step visit_time \\\n"
        "    --observation haemoglobin --observation ferritin --observation weight_gain --observation access \\\n"
        "    --elapsed days_since=days:30 --categories access=fistula,graft,catheter \\\n"
        "    --action epo_iu --reward score --horizon 20 \\\n"
        "    --bounds haemoglobin=4:18 --bounds ferritin=0:2000 --bounds weight_gain=0:8 \\\n"
        "    --bounds epo_iu=0:20000 --bounds score=-1:0",
        "",
    ),
    Step("Is everything there?", "primorl doctor"),
    Step("Are the settings and the columns right?", "primorl check"),
    Step("Keep it", "git add --all && git commit --quiet --message 'A project of anaemia visits'"),
    Step("Partition the data, which charges nothing", "dvc repro partition"),
    Step("What will it cost, and can it learn?", "primorl plan"),
    Step("Train, evaluate and report", "dvc repro"),
    Step("The results", "primorl summary"),
    Step("One page for those who decide", "primorl report"),
    Step("What was spent", "primorl ledger show && primorl ledger verify"),
    Step("Will the next run charge anything?", "primorl check --charges"),
    Step(
        "Actions for today's patients",
        "primorl predict --observations ../today.csv --out ../actions.csv \\\n"
        "    --trajectory patient --trajectory encounter --step visit_time --keep patient --keep visit_time\n"
        "cat ../actions.csv",
    ),
    Step(
        "What may leave the house",
        "git add --all && git commit --quiet --message 'The first run'\n"
        "primorl release ../out --policy models/policy && primorl release --check ../out",
    ),
)


def main() -> None:
    """Run the day, and write the page and the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="new or empty")
    parser.add_argument("--constraints", type=Path, help="versions of the packages to install")
    given = parser.parse_args()
    folder, wheel = given.folder.resolve(), given.wheel.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"--folder: found files in {folder}; allowed is a new or empty folder")
    write_log(folder / "visits.csv")
    (folder / "today.csv").write_text(_TODAY, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    person = {f"GIT_{role}_{what}": "you@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = kept | person
    if given.constraints is not None:
        environment["PIP_CONSTRAINT"] = str(given.constraints.resolve())
    blocks, seconds = [], []
    for step in STEPS:
        # The installation alone names the wheel by its place; the others begin in its environment.
        command = step.command.replace("primorl-0.1.0-py3-none-any.whl", str(wheel))
        before = "" if step is STEPS[0] else f"source '{folder}/.venv/bin/activate'; "
        started = time.perf_counter()
        done = subprocess.run(
            ["bash", "-euc", before + command],
            cwd=folder / step.inside,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        took = time.perf_counter() - started
        shown = "" if step is STEPS[0] and done.returncode == 0 else _shown(done.stdout.decode(), folder)
        print(f"{took:7.1f} s  {step.title}\n{shown}", flush=True)
        if done.returncode != 0:
            sys.exit(f"{step.command}: ended with {done.returncode}")
        seconds.append({"step": step.title, "seconds": round(took, 1)})
        prompt = step.command.replace("\n", "\n$ ").replace("\\\n$ ", "\\\n")
        blocks.append(f"### {step.title}\n\n{took:.1f} seconds.\n\n```text\n$ {prompt}\n{shown}```\n")
    total = sum(float(str(each["seconds"])) for each in seconds)
    text = f"{total / 60:.1f} minutes in all, on {machine()}.\n\n" + "\n".join(blocks)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(FIRST)
    PAGE.write_text(f"{before}{FIRST}{text}{LAST}{rest.partition(LAST)[2]}", encoding="utf-8")
    content = {
        "machine": machine(),
        "command": "python -m benchmarks.first_day",
        "total": round(total),
        "steps": seconds,
    }
    (RESULTS / "first_day.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_log(path: Path) -> None:
    """3,000 invented people on haemodialysis: what was measured, the dose given, and how near the target they came."""
    draw, start = random.Random(7), datetime(2021, 1, 4, 7)
    lines, encounter = ["patient,encounter,visit_time,haemoglobin,ferritin,weight_gain,access,ward,epo_iu,score"], 50000
    for person in range(3000):
        response = draw.gauss(1, 0.25)
        for _ in range(draw.choice([1, 1, 1, 2, 2, 3])):
            encounter += 1
            when = start + timedelta(days=draw.randint(0, 900))
            level, ferritin, dose = (
                _within(draw.gauss(9.8, 1.2), 5, 15),
                _within(draw.gauss(400, 150), 20, 1500),
                6000.0,
            )
            access = draw.choice(["fistula", "fistula", "graft", "catheter"])
            for _ in range(draw.randint(6, 20)):
                gain, days = _within(draw.gauss(2.2, 0.8), 0, 6), max(1.0, draw.gauss(10, 4))
                dose = _within(dose + 1200 * (11 - level) + draw.gauss(0, 1500), 0, 20000)
                rise = response * 0.12 * dose / 1000 * (0.6 + ferritin / 1500) - 0.8 - 0.25 * (access == "catheter")
                after = _within(level + days / 14 * rise - 0.15 * (level - 10) + draw.gauss(0, 0.3), 5, 16)
                score = max(-1.0, -abs(after - 11) / 4 - 0.2 * (after > 13))
                lines.append(
                    f"M{person:05d},{encounter},{when:%Y-%m-%d %H:%M},{level:.1f},{ferritin:.0f},{gain:.1f},{access},"
                    f"{draw.choice('AB')},{round(dose / 500) * 500},{score:.3f}"
                )
                level, ferritin = after, _within(ferritin + draw.gauss(-5, 30), 20, 1500)
                when += timedelta(days=days)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _within(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _shown(printed: str, folder: Path) -> str:
    """What a terminal shows at the end, folded, without what DVC repeats after every stage and this folder's name."""
    kept: list[str] = []
    for whole in printed.replace(str(folder), _SHOWN_AS).split("\n"):
        line = whole.rpartition("\r")[2].rstrip()
        if not _REPEATED.match(line) and (line or (kept and kept[-1])):
            kept += textwrap.wrap(line, _WIDTH, subsequent_indent="    ", **_AS_IT_IS) or [""]
    return "\n".join(kept).strip("\n") + "\n" if any(kept) else ""


if __name__ == "__main__":
    main()
