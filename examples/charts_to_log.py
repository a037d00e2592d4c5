"""Make a log for primorl of an intensive care unit's charts: one long table of events, one row a value.

    python examples/charts_to_log.py FOLDER examples/charts-log/log.parquet

FOLDER has three tables in the form of MIMIC-IV's module `icu`, ``.csv.gz`` or ``.csv``. Other columns are not read:

- ``icustays``: subject_id, stay_id
- ``chartevents``: stay_id, charttime (ISO 8601), itemid, valuenum
- ``inputevents``: stay_id, starttime, endtime, itemid, rate

Change items, bounds and reward below for your question. This script decides what is clinical; `source: tabular` refuses
what it got wrong. A row of the log is a time at which something of `ITEMS` was charted, in one stay of one patient.

- Values charted at one time are averaged. A value is carried forward within its stay only, for at most `OLDEST` hours;
  rows before all are known, and rows with one that is too old, are left out.
- A value outside of its bounds is an artefact and counts as missing. The bounds are what the device or the body allows,
  written down here, and never read off the rows.
- The dose is the rate of the vasopressor that runs at that time; the reward is the hours until the next row, counted as
  gained where the mean pressure is then at least 65 mmHg, and as lost where it is not.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

ITEMS = {
    220045: "heart_rate",
    220052: "mean_pressure",
    220181: "mean_pressure",
    220210: "breaths",
    220277: "saturation",
}
BOUNDS = {"heart_rate": (20, 250), "mean_pressure": (20, 200), "breaths": (0, 80), "saturation": (40, 100)}
NOREPINEPHRINE, MOST_RATE = 221906, 2.0  # micrograms per kg and minute
OLDEST = 8.0  # hours
LONGEST = 4.0  # hours that a row counts for; `most` and the bounds of the reward in the dataset's file
ROWS = 5_000_000  # of chartevents in memory at a time


def log_of(folder: Path) -> pd.DataFrame:
    """The rows of all stays."""
    wide = pivoted(pd.concat(events(folder), ignore_index=True))
    stays = wide.groupby("stay_id")
    for name in BOUNDS:
        age = wide["charttime"] - wide["charttime"].where(wide[name].notna()).groupby(wide["stay_id"]).ffill()
        wide[name] = stays[name].ffill().where(age <= pd.Timedelta(hours=OLDEST))
    wide = wide.dropna(subset=list(BOUNDS)).reset_index(drop=True)
    wide["dose"] = running(wide, read(folder, "inputevents", ["stay_id", "starttime", "endtime", "itemid", "rate"]))
    stays = wide.groupby("stay_id")
    hours = (stays["charttime"].shift(-1) - wide["charttime"]).dt.total_seconds() / 3600
    held = stays["mean_pressure"].shift(-1) >= 65
    wide["reward"] = hours.clip(upper=LONGEST).where(held, -hours.clip(upper=LONGEST))
    wide = wide[stays["charttime"].transform("size") > 1]
    whose = read(folder, "icustays", ["subject_id", "stay_id"])
    return wide.merge(whose, on="stay_id", validate="many_to_one")


def events(folder: Path) -> Iterator[pd.DataFrame]:
    """The values of `ITEMS` within their bounds, a part of the table at a time: it is larger than memory."""
    columns = ["stay_id", "charttime", "itemid", "valuenum"]
    for part in pd.read_csv(path_of(folder, "chartevents"), usecols=columns, chunksize=ROWS):
        part = part[part["itemid"].isin(ITEMS)].dropna()
        name = part["itemid"].map(ITEMS)
        low, high = (name.map({key: pair[side] for key, pair in BOUNDS.items()}) for side in (0, 1))
        kept = part["valuenum"].between(low, high)
        yield part.assign(name=name, charttime=pd.to_datetime(part["charttime"], format="ISO8601"))[kept]


def pivoted(values: pd.DataFrame) -> pd.DataFrame:
    """One row for each time in each stay, one column for each name."""
    wide = values.pivot_table(index=["stay_id", "charttime"], columns="name", values="valuenum", aggfunc="mean")
    return wide.reindex(columns=list(BOUNDS)).reset_index().rename_axis(columns=None)


def running(rows: pd.DataFrame, inputs: pd.DataFrame) -> pd.Series:
    """The rate that runs at the time of each row: that of the last start, unless it has ended."""
    own = inputs[inputs["itemid"] == NOREPINEPHRINE].dropna()
    for name in ("starttime", "endtime"):
        own = own.assign(**{name: pd.to_datetime(own[name], format="ISO8601")})
    last = pd.merge_asof(
        rows.reset_index().sort_values("charttime"),
        own.sort_values("starttime"),
        left_on="charttime",
        right_on="starttime",
        by="stay_id",
    ).set_index("index")
    return last["rate"].where(last["charttime"] < last["endtime"]).fillna(0.0).clip(0, MOST_RATE).sort_index()


def read(folder: Path, table: str, columns: list[str]) -> pd.DataFrame:
    """These columns of a table."""
    return pd.read_csv(path_of(folder, table), usecols=columns)


def path_of(folder: Path, table: str) -> Path:
    """The table's file, compressed or not."""
    return next(path for path in (folder / f"{table}.csv.gz", folder / f"{table}.csv") if path.exists())


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    log_of(source).to_parquet(target, index=False)
