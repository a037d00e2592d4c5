"""Python, `primorl predict` and the service give the same action for the same row, or none."""

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primorl.policy.loaded import ObservationError
from primorl.use import predict
from tests.examples.test_serve_policy import asked, serving
from tests.policy.test_exported import policy as network
from tests.policy.test_loaded import loaded

NAMES = ("meal=none", "meal=snack", "hours")
ANSWERED: list[dict[str, Any]] = [
    {"meal": "none", "hours": 5},
    {"hours": 5.25, "meal": "snack", "patient": "A"},
    {"meal=none": 0, "meal=snack": 1, "hours": 4.9},
]
REFUSED: list[dict[str, Any]] = [
    {"meal=none": none, "meal=snack": snack, "hours": 5}
    for none, snack in ((1, 1), (0, 0), (0.5, 0.5), (None, 1))
]
REFUSED += [{"meal": "none", "hours": hours} for hours in (None, math.nan, -99, 400, math.inf)]
REFUSED += [{"meal": meal, "hours": 5} for meal in ("dinner", None)]


def encoded(row: dict[str, Any]) -> list[float]:
    """The row as a caller from Python gives it."""
    whole = dict(row)
    if "meal" in row:
        whole |= {f"meal={name}": float(row["meal"] == name) for name in ("none", "snack")}
    return [float("nan") if whole[name] is None else float(whole[name]) for name in NAMES]


@pytest.mark.parametrize("discrete", [False, True])
def test_three_ways_to_use_a_policy_agree_on_every_row(tmp_path: Path, discrete: bool) -> None:
    low = network(0).observation_mean * 0
    policy = loaded(
        tmp_path / "policy",
        discrete=discrete,
        observation_range=(low, low + 6),
        names=(NAMES, ("low", "high")),
        one_hot=((0, 2),),
    )
    with serving(policy) as port:
        for row in (*ANSWERED, *REFUSED):
            rows, out = tmp_path / "in.csv", tmp_path / "out.csv"
            with rows.open("w", newline="") as written:
                csv.writer(written).writerows([row.keys(), row.values()])
            predict(policy, rows, out)
            (found,) = csv.DictReader(out.read_text().splitlines())
            _, served = asked(port, row)
            given = encoded(row)
            if row in REFUSED:
                with pytest.raises(ObservationError):
                    policy.act(given)
                assert (found["abstained"], found["reason"] != "") == ("true", True), row
                assert "action" not in served, row
                continue
            action: Any = policy.act(given)
            if discrete:
                name = policy.action_names[action]
                assert served == {"action": action, "action_name": name}
                assert (found["action"], found["action_name"]) == (str(action), name)
            else:
                assert served == {"action": action.tolist()}
                by_name = [float(found[name]) for name in ("low", "high")]
                np.testing.assert_allclose(by_name, action, rtol=1e-6)
