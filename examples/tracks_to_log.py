"""Make a log for primorl of recorded operations: a file a case, seconds since its beginning, many
empty cells.

    python examples/tracks_to_log.py examples/cases examples/cases-log/log.parquet

The folder has ``clinical_data.csv`` (caseid, subjectid) and one file a case, ``<caseid>.csv`` or
``.csv.gz``, whose columns are ``Time`` and a track each: the form in which VitalDB's cases are
exported. Change the names and the bounds below for your own tracks. This script decides what is
clinical; `source: tabular` refuses what it got wrong.

- A row of the log is a decision: a time at which the pump's rate was set. The last one of a case is
  marked `ended`: an operation that is over has terminated. Its clock is a column, or a model could
      not know when that is.
- A measurement is carried forward within its case only, for at most `OLDEST` seconds. A row without
  one is left out, and with it the decision: the reward of the row before covers the whole time
      until the next row.
- A value outside of its bounds is an artefact and counts as missing. The bounds are what the device
  or the body allows, written down here, and never read off the rows.
- The reward of a row is the score of each BIS up to the next row, or the end, times the minutes
  since the reading before it.
"""

import sys
from pathlib import Path

import pandas as pd

CP, CE, BIS, RATE = "Orchestra/PPF20_CP", "Orchestra/PPF20_CE", "BIS/BIS", "Orchestra/PPF20_RATE"
BOUNDS = {CP: (0.0, 20.0), CE: (0.0, 20.0), BIS: (0.0, 100.0), RATE: (0.0, 200.0)}
NAMES = {CP: "plasma", CE: "effect_site", BIS: "bis"}
OLDEST = 120.0  # seconds
# between two decisions, by the protocol; also in the bounds of the dataset's file
LONGEST = 300.0


def score(bis: float) -> float:
    """What a minute at this depth of anaesthesia is worth: 1 as planned, -2 far from it."""
    if 40 <= bis <= 60:
        return 1.0
    return -0.5 if 30 <= bis <= 70 else -2.0


def log_of(folder: Path) -> pd.DataFrame:
    """The rows of all cases in ``folder``."""
    whose = pd.read_csv(folder / "clinical_data.csv").set_index("caseid")["subjectid"]
    files = {int(path.name.partition(".")[0]): path for path in folder.glob("[0-9]*.csv*")}
    logs = [
        rows_of(pd.read_csv(files[case])).assign(subjectid=subject, caseid=case)
        for case, subject in whose.items()
    ]
    return pd.concat(logs, ignore_index=True)


def rows_of(tracks: pd.DataFrame) -> pd.DataFrame:
    """The rows of one case."""
    tracks = tracks.sort_values("Time", ignore_index=True)
    seconds = tracks["Time"].astype(float)
    for name, (low, high) in BOUNDS.items():
        tracks[name] = tracks[name].where(tracks[name].between(low, high))
    complete = tracks[RATE].notna()
    rows = pd.DataFrame({"seconds": seconds, "minutes": seconds / 60, "dose": tracks[RATE]})
    for track, name in NAMES.items():
        age = seconds - seconds.where(tracks[track].notna()).ffill()
        rows[name] = tracks[track].ffill().where(age <= OLDEST)
        complete &= rows[name].notna()
    rows["rate_before"] = tracks[RATE].shift().ffill().fillna(0.0)
    held = seconds.diff().fillna(0.0) / 60
    earned = (tracks[BIS].ffill().map(score, na_action="ignore").fillna(0.0) * held).cumsum()
    least, most = -2.0 * LONGEST / 60, LONGEST / 60
    until = earned[complete].shift(-1, fill_value=earned.iloc[-1])
    rows = rows[complete].assign(reward=(until - earned[complete]).clip(least, most))
    since = rows["seconds"].diff().fillna(0.0).clip(upper=LONGEST)
    return rows.assign(seconds_since=since, ended=rows.index == rows.index.max())


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.parent.mkdir(parents=True, exist_ok=True)
    log_of(source).to_parquet(target, index=False)
