"""``source: meds``: the events of whole subjects become the rows that a plain loop over events
finds.
"""

import math
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from shutil import move
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from primorl.base import PipelineError
from primorl.config.datasets import MedsDataset, validate
from primorl.data.sources import meds, source_of
from tests.data.builders import collected, ingested
from tests.projects import project_settings

Event = tuple[int, float | None, str, float | None]  # subject, hour, code, number
Row = dict[str, Any]
Made = tuple[Any, ...]  # subject, trajectory, hour, observation, action, reward, terminated

BEGAN = datetime(2150, 1, 1)
UNDATED = (datetime(1900, 1, 1) - BEGAN) / timedelta(hours=1)
OBSERVED: list[dict[str, Any]] = [
    {"name": "glucose", "codes": ["LAB//GLUCOSE*"], "low": 0, "high": 30, "most": 12},
    {"name": "lactate", "codes": ["LAB//LACTATE"], "low": 0, "high": 20, "most": 2}
    | {"first": 1.5, "before": True},
    {"happened": "female", "codes": ["GENDER//F"]},
    {"elapsed": "hours_since", "unit": "hours", "most": 24},
]
DOSES = {"name": "insulin", "codes": ["INSULIN"], "bins": [0, 4]}
IN_RANGE = {"observation": "glucose", "low": 4, "high": 10, "inside": 1, "outside": -1}
DEATH, MEALS = {"codes": ["MEDS_DEATH"], "value": -10}, {"codes": ["MEAL"], "scale": 0.5}
OPTIONS: dict[str, Any] = {"folder": "meds", "begins": ["ADMISSION//*"], "ends": ["DISCHARGE"]}
OPTIONS |= {"terminates": ["MEDS_DEATH"], "decision": {"every": 4, "unit": "hours"}}
OPTIONS |= {"observation": OBSERVED, "action": [DOSES], "reward": [IN_RANGE, DEATH, MEALS]}


def entry(options: dict[str, Any] | None = None, **changes: Any) -> MedsDataset:
    own = project_settings("csv-log")["chosen"]
    own |= {"source": "meds", "unit": "subject_id", "termination": "learned", "horizon": 50}
    own |= {"trajectories_per_person": None, "ingestion": {"duplicates": "allow"}}
    own["bounds"] = {"observation": "space", "reward": [-20, 20]}
    return validate(MedsDataset, own | changes | {"options": OPTIONS | (options or {})})


def write(events: list[Event], name: str = "train/0") -> None:
    path = Path(f"meds/data/{name}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    times = [None if hour is None else BEGAN + timedelta(hours=hour) for _, hour, _, _ in events]
    subject, _, code, value = zip(*events, strict=True)
    columns = [pa.array(subject, pa.int64()), pa.array(times, pa.timestamp("us"))]
    columns += [pa.array(code), pa.array(value, pa.float32())]
    pq.write_table(pa.table(columns, names=["subject_id", "time", "code", "numeric_value"]), path)


def run(dataset: MedsDataset) -> list[Row]:
    """What ``collect`` and ``ingest`` make of the folder."""
    raw = Path("data/raw")
    shutil.rmtree(raw, ignore_errors=True)
    return ingested(collected(dataset, "log", raw), "log", raw).to_pylist()


STAY: list[Event] = [
    (7, None, "GENDER//F", None),
    (7, -1, "LAB//LACTATE", 3.0),
    (7, 0, "ADMISSION//EMERGENCY", None),
    (7, 1, "LAB//GLUCOSE//mmol", 8.0),
    (7, 4, "INSULIN", 3.0),
    (7, 5, "INSULIN", 2.5),
    (7, 6, "LAB//GLUCOSE//mmol", 90.0),
    (7, 8, "LAB//GLUCOSE//mmol", 12.0),
    (7, 8, "MEAL", 2.0),
    (7, 10, "DISCHARGE", None),
]


def test_a_stay_becomes_decisions_that_a_clinician_can_check(project: Path) -> None:
    """Decisions at 4 and 8 h: the first at which glucose is known; 90 is an artefact; the end at 10
    h is observed.
    """
    death: list[Event] = [(9, *each[1:]) for each in STAY[2:-1]]
    death.append((9, 9.0, "MEDS_DEATH", None))
    write(STAY)
    write(death, "held_out/0")
    made = run(entry())
    assert [int(each["unit_id"]) for each in made] == [7, 7, 9, 9]
    assert [each["action"] for each in made] == [2, 0, 2, 0]
    assert [each["observation"] for each in made[:2]] == [[8, 3, 3, 2, 1, 0], [12, 0, 3, 2, 1, 4]]
    after = [[12, 0, 3, 2, 1, 4], [12, 2, 3, 2, 1, 2]]
    assert [each["next_observation"] for each in made[:2]] == after
    assert made[2]["observation"] == [8, 3, 1.5, 2, 0, 0], "nothing is known of lactate or sex"
    assert [each["reward"] for each in made] == [-1 + 1, -1, -1 + 1, -1 - 10]
    assert [each["terminated"] for each in made] == [False, False, False, True]
    spaces = source_of("log", entry()).open(Path("data/raw")).spaces
    names = "glucose glucose_age lactate lactate_age female hours_since"
    assert " ".join(spaces.observation_names) == names
    assert spaces.observation_high == (30, 12, 20, 2, 1, 24)
    assert spaces.action_names == ("up to 0", "0 to 4", "above 4")
    own = [{**OBSERVED[0], "age": False, "most": None}, {**OBSERVED[1], "age": False}]
    ageless = run(entry({"observation": own}))
    assert [each["observation"] for each in ageless[:2]] == [[8, 3], [12, 3]]
    dose = {"name": "dose", "codes": ["INSULIN"], "low": 0, "high": 9, "most": 9}
    clock = {"clock": "hour", "unit": "hours", "most": 6}
    hourly = {"observation": [dose, clock], "reward": OPTIONS["reward"][1:]}
    hourly["decision"] = {"every": 1, "unit": "hours"}
    (cut, _) = run(entry(hourly, horizon=1))
    assert (cut["observation"], cut["truncated"]) == ([3, 1, 5], True), "not the dose at 5 h"


def test_declared_numbers_are_compared_in_the_type_of_the_values(project: Path) -> None:
    """As float64, float32(0.1) is above 0.1: no dose at that edge, no value at that bound."""
    values = {"INSULIN": 0.1, "LAB//GLUCOSE//mmol": 0.1}
    write([(*each[:3], values.get(each[2], each[3])) for each in STAY])
    options = {"terminates": None, "reward": [IN_RANGE | {"low": 0, "high": 0.1}]}
    for of, level in (("sum", 2), ("last", 1)):
        dose = DOSES | {"bins": [0, 0.1, 0.2], "of": of}
        made = run(entry(options | {"action": [dose]}, termination="none"))
        assert made[0]["action"] == level
        assert [each["reward"] for each in made] == [1, 1]


def test_collect_tells_in_one_line_whom_and_what_it_left_out(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one person all values of glucose lie outside its bounds, so nothing can be decided."""
    write(STAY)
    other: dict[float | None, float | None] = {12.0: 90.0, 8.0: None}
    write([(9, h, code, other.get(v, v)) for _, h, code, v in STAY], "b")
    run(entry({"terminates": None, "reward": [IN_RANGE]}, termination="none"))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("collect: ")]
    assert said == [
        "collect: 1 of 2 subjects in 2 shards have a decision and are kept, with 1 of 2 "
        "trajectories; values left out or cut: 3 of 6 glucose beyond bounds, 1 of 6 glucose "
        "without a number"
    ]


SHARD = Path("meds/data/train/0.parquet")


def with_shard(change: Callable[[pa.Table], pa.Table]) -> Callable[[], None]:
    return lambda: pq.write_table(change(pq.read_table(SHARD)), SHARD)


def numbers(kind: pa.DataType, **other: Any) -> None:
    """Write the numbers of the shard anew; ``other`` are those of some rows, as ``row_3``."""
    shard = pq.read_table(SHARD)
    given = shard["numeric_value"].to_pylist()
    for place, value in other.items():
        given[int(place.removeprefix("row_")) - 1] = value
    if pa.types.is_string(kind):
        given = [each if each is None else str(each) for each in given]
    elif pa.types.is_decimal(kind):
        given = [each if each is None else Decimal(str(each)) for each in given]
    pq.write_table(shard.set_column(3, "numeric_value", pa.array(given, kind)), SHARD)


IN_WARD: dict[str, Any] = {"terminates": None, "reward": [IN_RANGE, MEALS]}
FORMS: dict[str, tuple[Callable[[], Any], str | None]] = {  # of a shard, and what is refused
    "doubles": (lambda: numbers(pa.float64()), None),
    "decimals, as DuckDB writes": (lambda: numbers(pa.decimal128(9, 2)), None),
    "text": (lambda: numbers(pa.string()), "numeric_value: found string; allowed is float"),
    "an endless dose": (lambda: numbers(pa.float32(), row_6=np.inf), "row 6: .*infinite"),
    "MEDS 0.2 named patients": (
        with_shard(lambda rows: rows.rename_columns({"subject_id": "patient_id"})),
        "subject_id: found no column, or two; convert it to MEDS 0.3",
    ),
    "times in seconds": (
        with_shard(lambda rows: rows.set_column(1, "time", pa.array(range(10)))),
        "time: found int64; allowed is timestamp",
    ),
    "ids with a point": (
        with_shard(lambda rows: rows.set_column(0, "subject_id", pa.array([7.0] * 10))),
        "subject_id: found double; allowed is int64",
    ),
    "a name that others leave out": (
        lambda: move(SHARD, SHARD.with_name("_0.parquet")),
        "_0.parquet: found a name that is no log's",
    ),
    "the folder below": (
        lambda: move(SHARD.parent, "train"),
        "in MEDS the folder is that above `data`",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_any_type_are_read_and_other_forms_refused_with_the_remedy(
    project: Path, form: str
) -> None:
    write(STAY)
    ward = entry(IN_WARD, termination="none")
    expected = run(ward)
    change, says = FORMS[form]
    change()
    if says is None:
        made = run(ward)
        if "word" in form:
            expected[0]["reward"] -= 1  # the meal has no number
        assert made == expected
    else:
        with pytest.raises(PipelineError, match=says):
            run(ward)


RATE: dict[str, Any] = {"name": "rate", "codes": ["INSULIN*"], "of": "last", "low": 0, "high": 9}
THOUSANDTHS = {"reward": [{"codes": ["MEAL*"], "scale": 0.001}]}
BOUNDED = {"action": [DOSES | {"bins": None, "low": 0, "high": 5}]}
# events beside those of the stay, keys of the entry, and what is told
TOLD: dict[str, tuple[list[Event], dict[str, Any], str]] = {
    "twice, with a text": (
        [(7, 8, "LAB//GLUCOSE//mmol", None)],
        {},
        "1 events have the subject",
    ),
    "another code": ([(7, 4, "MEAL", 3.0)], {}, ""),
    "two units": ([(7, 5, "LAB//GLUCOSE//mg", 9.0)], {}, "one unit? LAB//GLUCOSE//mg, LAB"),
    "a stay within a day": ([(7, 0, "DISCHARGE", None)], {}, "1 trajectories have an end at their"),
    "an unknown time": ([(7, UNDATED, "MEAL", 1.0)], {}, "1 events are at 1900-01-01"),
    "no number": ([(7, 3, "INSULIN", None)], {}, "1 events of a dose or reward have no number"),
    "of a dose": ([(7, 5, "INSULIN//mL", 0.1)], {"action": [RATE | {"of": "sum"}]}, "rate is read"),
    "of a rate": ([(7, 5, "INSULIN//mL/h", 0.1)], {"action": [RATE]}, "rate is read"),
    "of a reward": ([(7, 5, "MEAL//kcal", 900.0)], THOUSANDTHS, "one unit? MEAL, MEAL//kcal"),
    "of a count": ([(7, 5, "INSULIN//mL", 0.1)], {"action": [RATE | {"of": "count"}]}, ""),
    "a sum beyond": ([], BOUNDED, "1 of 2 insulin"),
    "a rate in thousands": ([(7, 6, "INSULIN", 2500.0)], {"action": [RATE]}, "2 of 2 rate beyond"),
    "below": ([(7, 9, "INSULIN", -1.0)], {"action": [RATE]}, "1 of 2 rate beyond bounds (cut)"),
    "within": ([(7, 9, "INSULIN", 9.0)], {"action": [RATE]}, ""),
    "a reward beyond": (
        [(7, 9, "MEAL", 80.0)],
        {},
        "some values of reward were beyond bounds",
    ),
    "beyond the horizon": ([], {"horizon": 1}, "1 trajectories are longer than the horizon"),
    "at the horizon": ([], {"horizon": 2}, ""),
}


def by_time(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda each: -math.inf if each[1] is None else each[1])


@pytest.mark.parametrize("what", TOLD)
def test_what_is_decided_or_doubtful_about_events_is_told(
    project: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a dose is in units and in millilitres, or in thousandths."""
    more, keys, says = TOLD[what]
    write(by_time([*STAY, *more]))
    own = {key: keys[key] for key in keys if key != "horizon"}
    run(entry(IN_WARD | own, termination="none", horizon=keys.get("horizon", 50)))
    said = capsys.readouterr().err
    known = {each for _, _, each in TOLD.values() if each}
    assert {each for each in known if each in said} == ({says} if says else set())


NEEDED: dict[str, str] = {"a dose": "INSULIN", "a death": "MEDS_DEATH", "an end": "DISCHARGE"}
NEEDED |= {"a value": "LAB//LACTATE", "a reward": "MEAL", "a begin": "ADMISSION//URGENT"}
NEEDED |= {"a decision": "ROUND", "a birth": "MEDS_BIRTH"}


@pytest.mark.parametrize("what", NEEDED)
def test_an_event_without_the_time_that_it_needs_is_refused(project: Path, what: str) -> None:
    """Twin: what happened at any time, and a code of no role, need none."""
    age = {"since": "age", "codes": ["MEDS_BIRTH"], "unit": "days", "most": 36500}
    options = {"observation": [*OBSERVED, age], "decision": {"codes": ["ROUND", "LAB//GLUCOSE*"]}}
    whole = [*STAY[:9], (7, 9, "ROUND", None), *STAY[9:], (7, 11, "MEDS_DEATH", None)]
    birth = (7, -99, "MEDS_BIRTH", None)
    for code, refused in (("BLOOD//A", False), (NEEDED[what], True)):
        write([STAY[0], (7, None, code, 1.0), birth, *whole[1:]])
        if refused:
            with pytest.raises(PipelineError, match=r"0\.parquet: row 2: found no time; give it"):
                run(entry(options))
        else:
            assert run(entry(options))[0]["observation"][4] == 1


ADMITTED, LEFT = (7, 0, "ADMISSION//A", None), (7, 10, "DISCHARGE", None)
EARLIER: list[Event] = [(7, -9, "ADMISSION//A", None), (7, -3, "DISCHARGE", None)]
RATES: dict[str, tuple[list[Event], float]] = {  # events of the stay and before; its first rate
    "a day before": ([(7, -24, "INSULIN", 5.0)], 5),
    "longer ago": ([(7, -25, "INSULIN", 5.0)], 0),
    "set at its end": ([*EARLIER, (7, -3, "INSULIN", 5.0)], 0),
    "set after its end": ([*EARLIER, (7, -2, "INSULIN", 5.0)], 5),
}


@pytest.mark.parametrize("which", RATES)
def test_a_rate_that_was_set_before_the_begin_holds_but_not_that_of_another_stay(
    project: Path, which: str
) -> None:
    events, first = RATES[which]
    stay: list[Event] = [ADMITTED, (7, 0, "LAB//GLUCOSE", 8.0), (7, 6, "INSULIN", 3.0), LEFT]
    write(sorted([*events, *stay], key=lambda each: (each[0], each[1] or 0)))
    reward = [IN_RANGE]
    made = run(
        entry(
            {"terminates": None, "reward": reward, "action": [RATE], "observation": [OBSERVED[0]]},
            termination="none",
        )
    )
    assert [each["action"] for each in made] == [[first], [3], [3]]


HOME, MOVED = {"codes": ["DISCHARGE"], "value": 1}, {"codes": ["MEAL"], "value": 0.5}
DEATH_OR_HOME = ["MEDS_DEATH", "DISCHARGE"]
OUTCOMES: dict[str, tuple[list[Any], list[str], list[float], str]] = {
    "both are true ends": ([DEATH, HOME], DEATH_OR_HOME, [-10, 1], ""),
    "a discharge is a cut": ([DEATH], ["MEDS_DEATH"], [-10, 0], "with 'home' of bounds.outcomes"),
    "nobody dies": ([DEATH, HOME], DEATH_OR_HOME, [-99, 1], "row 4: .*bounds.outcomes does not na"),
    "a cut earns": ([DEATH, HOME], ["MEDS_DEATH"], [-10, 1], "row 2: .*in MEDS options.terminates"),
    "meals earn, too": (
        [DEATH, HOME, MOVED],
        DEATH_OR_HOME,
        [-10, 1],
        "row 1: .*bounds.before_end",
    ),
}


@pytest.mark.parametrize("which", OUTCOMES)
def test_outcomes_that_the_events_do_not_have_are_refused_or_told(
    project: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reward, terminates, within, says = OUTCOMES[which]
    death = [(9, *each[1:]) for each in STAY[:-1]] + [(9, 9.0, "MEDS_DEATH", None)]
    write([*STAY, *death])
    bounds = {"observation": "space", "reward": within}
    bounds |= {"before_end": [0, 0], "outcomes": ["died", "home"]}
    dataset = entry({"reward": reward, "terminates": terminates}, bounds=bounds)
    if "row" in says:
        with pytest.raises(PipelineError, match=says):
            run(dataset)
    else:
        assert len(run(dataset)) == 4
        said = capsys.readouterr().err
        assert says in said
        assert ("bounds.outcomes" in said) is bool(says)


def test_times_that_spark_wrote_are_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nanoseconds, as which they are read by default, end in the night after this day."""
    monkeypatch.setattr(f"{__name__}.BEGAN", datetime(2262, 4, 11, 20))
    write([*STAY[:-1], (7, 9, "MEDS_DEATH", None), STAY[-1]])
    made = run(entry())
    pq.write_table(pq.read_table(SHARD), SHARD, use_deprecated_int96_timestamps=True)
    assert run(entry()) == made


DEATH_AT = ((-10, True), (0, True), (9, False), (10, False), (10.5, True), (34, True))
DEATHS: list[tuple[dict[float, str], bool]] = [({at: "MEDS_DEATH"}, late) for at, late in DEATH_AT]
DEATHS += [({9: "MEDS_DEATH", 9.5: "DISCHARGE//DIED"}, False)]  # as converters write it


@pytest.mark.parametrize(("deaths", "late"), DEATHS)  # and whether one is outside the stay
def test_a_death_outside_the_stay_that_it_ended_is_told(
    project: Path, deaths: dict[float, str], late: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where it has a day and no time, or is written after the discharge."""
    write(by_time([*STAY, *((7, hour, code, None) for hour, code in deaths.items())]))
    made = run(entry({"terminates": [*deaths.values()]}))
    assert made[-1]["terminated"] != late
    said = "1 events that terminate end no trajectory"
    assert (said in capsys.readouterr().err) == late


def test_what_cannot_be_meant_is_refused(project: Path) -> None:
    for events, says in (
        (STAY, "found 'MEDS_DEATH'"),
        ([STAY[3], STAY[2]], "row 2: found a time before"),
        ([*STAY[1:], STAY[0]], r"row 10: .*NULLS FIRST"),  # as DuckDB sorts
        ([STAY[0], (8, 0, "MEAL", 1.0), *STAY[1:]], "found a subject in two files, or .*join"),
    ):
        write(events)
        with pytest.raises(PipelineError, match=says):
            run(entry())
    for options, key in (
        ({"action": [DOSES | {"low": 0}]}, "bins"),
        ({"action": [DOSES, {"name": "rate", "codes": ["MEAL"], "low": 0, "high": 1}]}, "bins, or"),
        ({"reward": [IN_RANGE | {"observation": "sugar"}]}, "'sugar'"),
        ({"action": [DOSES | {"name": "glucose_age"}]}, "a name stands twice"),
        ({"terminates": None}, "options.terminates"),
        ({"observation": [{**OBSERVED[0], "most": None}]}, "most: missing, the highest age"),
    ):
        with pytest.raises(ValidationError, match=key):
            entry(options)


def fits(code: str, part: Any) -> bool:
    patterns = part["codes"] if isinstance(part, dict) else part or []
    return any(code.startswith(p[:-1]) if p.endswith("*") else code == p for p in patterns)


def observed(own: list[Any], options: dict[str, Any], begin: float, at: float) -> Any:
    """What is known of a subject with these events at a time; None where a number is not."""
    found: list[float] = []
    doses = [code for dose in options["action"] for code in dose["codes"]]
    for part in options["observation"]:
        some = [(t, x) for t, code, x in own if fits(code, part)]
        strict = any(code in doses for code in part["codes"])
        some = [(t, x) for t, x in some if t is None or t < at or (t == at and not strict)]
        if "happened" in part:
            found.append(float(bool(some)))
            continue
        if "since" in part:
            found.append(min([part["most"], *(at - t for t, _ in some)]))
            continue
        since = begin - (part["most"] if part.get("before") else 0)
        values = [(t, x) for t, x in some if t is not None and t >= since and x is not None]
        values = [(t, x) for t, x in values if part["low"] <= x <= part["high"]]
        if not values and part.get("first") is None:
            return None
        t, x = values[-1] if values else (at - part["most"], part["first"])
        found += [x, min(at - t, part["most"])]
    return found


def slow(events: list[Event], options: dict[str, Any], horizon: int, most: int) -> list[Made]:
    """The rows of the log, subject by subject and event by event: the obvious reference."""
    rows: list[Made] = []
    parts = [options["decision"], *options["observation"], *options["action"], *options["reward"]]
    parts = [part for part in parts if "codes" in part]
    parts += [options["begins"], options["ends"], options["terminates"]]
    (dose,) = options["action"]
    for subject in dict.fromkeys(each[0] for each in events):
        own = [each[1:] for each in events if each[0] == subject]
        own = [each for each in own if any(fits(each[1], part) for part in parts)]
        timed = [(t, code, x) for t, code, x in own if t is not None]

        def when(part: Any, timed: list[Any] = timed) -> list[float]:
            return sorted({t for t, code, _ in timed if fits(code, part)})

        begins = when(["*"])[:1] if options["begins"] is None else when(options["begins"])
        kept, left = 0, -np.inf  # when the trajectory before ended
        for number, begin in enumerate(begins):
            following = begins[number + 1] if number + 1 < len(begins) else np.inf
            deaths = when(options["terminates"])
            stops = [t for t in deaths + when(options["ends"]) if begin < t <= following]
            end = min(stops or [t for t in when(["*"]) if t < following or t == begin][-1:])
            died = bool(stops) and end in deaths
            running = [t for t in when(dose) if t >= begin or (t > left and t >= begin - 24)]
            left = end
            if "codes" in options["decision"]:
                times = [t for t in when(options["decision"]) if begin <= t < end]
            else:
                times = list(np.arange(begin, end, options["decision"]["every"]))
            times = [t for t in times if observed(own, options, begin, t) is not None]
            cut = len(times) > horizon
            final = times[horizon] if cut else end
            times = times[:horizon]
            if not times or kept == most:
                continue
            kept += 1
            for t, later in zip(times, [*times[1:], final], strict=True):
                given = [(u, x) for u, c, x in timed if fits(c, dose) and u < later]
                dosed = [(u, x) for u, x in given if x is not None]
                done = sum(x for u, x in dosed if u >= t)
                if dose.get("of") == "last":
                    done = ([0.0] + [x for u, x in dosed if u in running])[-1]
                reward = 0.0
                for part in options["reward"]:
                    if "observation" in part:
                        value = observed(own, options, begin, later)[0]
                        inside = part["low"] <= value <= part["high"]
                        reward += part["inside"] if inside else part["outside"]
                        continue
                    for x in [x for u, c, x in timed if fits(c, part) and t < u <= later]:
                        reward += part["value"] if "value" in part else part["scale"] * (x or 0.0)
                seen = observed(own, options, begin, t)
                rows.append((subject, number, t, seen, done, reward, died and later == end))
            if not died or cut:
                seen = observed(own, options, begin, final)
                rows.append((subject, number, final, seen, None, None, False))
    return rows


CODES = ["LAB//GLUCOSE//mmol", "LAB//LACTATE", "INSULIN", "MEAL", "ADMISSION//A"]
CODES += ["DISCHARGE", "MEDS_DEATH"]
OFTEN = (0.32, 0.2, 0.22, 0.15, 0.06, 0.03, 0.02)


def records(rng: np.random.Generator) -> list[Event]:
    """Some subjects' events in whole hours, many at the same time."""
    events: list[Event] = []
    for subject in rng.permutation(20).tolist():
        events += [(subject, None, "GENDER//F", None)] * int(rng.integers(2))
        for hour in np.sort(rng.integers(-5, 40, rng.integers(60))).tolist():
            number = None if rng.random() < 0.1 else float(rng.integers(40))
            events.append((subject, float(hour), str(rng.choice(CODES, p=OFTEN)), number))
    return events


@pytest.mark.parametrize("seed", range(10))
def test_rows_are_those_of_a_plain_loop_over_events(seed: int, project: Path) -> None:
    rng = np.random.default_rng(seed)
    events = records(rng)
    horizon, most = (int(rng.integers(1, limit)) for limit in (8, 4))
    own = {"name": "dosed", "codes": ["INSULIN"], "low": 0, "high": 30, "most": 5}
    own |= {"first": 0} if seed % 2 else {}
    fasting = {"since": "fasting", "codes": ["MEAL"], "unit": "hours", "most": 9}
    options = OPTIONS | {"observation": [*OBSERVED[:3], own, fasting]}
    every = {"every": 3, "unit": "hours"}
    options["decision"] = every if seed % 3 else {"codes": ["INSULIN", "MEAL"]}
    of = "last" if seed % 4 > 1 else "sum"
    options["action"] = [{"name": "dose", "codes": ["INSULIN"], "of": of, "low": -1e6, "high": 1e6}]
    if seed % 5 == 0:
        options |= {"begins": None, "ends": None}
    dataset = entry(options, horizon=horizon, trajectories_per_person=most)
    codes = meds.Codes(dataset.options)
    made_of = meds.Decisions(dataset, codes)
    write(events)
    table = made_of.table(meds.read_shard(Path("meds/data/train/0.parquet"), codes)[0])
    made = []
    for subject, number, time, *rest in (each.values() for each in table.to_pylist()):
        *seen, dose, reward, ended = rest
        hours = (time - BEGAN) / timedelta(hours=1)
        made.append((subject, number, hours, seen, dose, reward, ended))
    assert made == slow(events, options, horizon, most)
    assert len(made) >= 20
