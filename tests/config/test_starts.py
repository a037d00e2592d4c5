"""Where rollouts begin, and what takes the place of public units, is settled before anything is paid for."""

from typing import Any

import pytest

from primorl.config import params
from tests.config.test_params import changed, refusal
from tests.projects import project_settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "csv-log"}, None),
        (
            {"dataset": "csv-log", "policy.starts": "reset"},
            "found 'reset', while datasets/csv-log.yaml says environment: null",
        ),
        (
            {"policy.starts": "public", "partition.public_fraction": 0},
            "nobody is public; set, all at once, privacy.statistics.normaliser: bounds (or private, charged), "
            "policy.starts: reset (or auto)",
        ),
        (
            {
                "dataset": "csv-log",
                "partition.public_fraction": 0,
                "policy.starts": "public",
                "dynamics.early_stopping.patience": 3,
                "chosen.bounds.reward": "public",
            },
            "nobody is public; set, all at once, privacy.statistics.normaliser: bounds (or private, charged), "
            "privacy.statistics.starts: true (charged), policy.starts: released (or auto), "
            "dynamics.early_stopping.patience: null, bounds.reward: [low, high] in datasets/csv-log.yaml",
        ),
        (
            {
                "dataset": "csv-log",
                "partition.public_fraction": 0,
                "policy.starts": "released",
                "privacy.statistics.normaliser": "bounds",
                "privacy.statistics.starts": True,
            },
            None,
        ),
        ({"policy.starts": "released"}, "found 'released', while privacy.statistics.starts is false"),
        ({"policy.starts": "released", "privacy.statistics.starts": True}, None),
        ({"policy.starts": "released", "dynamics.variant": "mopo"}, None),
    ],
)
def test_where_rollouts_begin_is_settled_before_anything_is_paid_for(
    changes: dict[str, Any], message: str | None
) -> None:
    raw = project_settings(changes.pop("dataset", "pendulum-replay"))
    for key, value in changes.items():
        raw = changed(key, value, raw)
    if message is None:
        params.from_plain(raw)
    else:
        assert message in refusal(raw)
