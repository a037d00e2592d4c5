"""The public policy: the environment's own actions, as evaluation computes them, and one line for
what cannot be.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from primorl.base.errors import PipelineError
from primorl.policy.exported import DeterministicPolicy, save
from primorl.policy.loaded import ObservationError, OutsideRangeError, Policy, read_policy
from tests.policy.test_exported import EPOCHS, HIGH, LOW

LOG: dict[str, Any] = {
    "observation_range": (torch.tensor([-10.0, -10.0, 5.0]), torch.tensor([10.0, 10.0, 5.0]))
}
RANGE: dict[str, Any] = {"environment": "Pendulum-v1"} | LOG
NAMES: dict[str, Any] = {"names": (("age", "dose", "weight"), ("up", "down"))}
ROWS = np.array([[0.5, -9.0, 5.0], [1.0, 2.0, 5.5], [-3.0, 8.0, 4.9]])


def loaded(folder: Path, *, discrete: bool = False, **about: Any) -> Policy:
    folder.mkdir(exist_ok=True)
    epochs = [replace(one, discrete_actions=discrete) for one in EPOCHS]
    save(folder, epochs, variant="private", **{"environment": None} | about)
    return read_policy(folder)


def test_it_acts_as_the_policy_that_is_evaluated(tmp_path: Path) -> None:
    """Within the bounds; discrete actions are integers.

    The twin: another epoch's policy acts otherwise.
    """
    policy = loaded(tmp_path)
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)) * 5
    actions = policy.act(rows)
    np.testing.assert_allclose(
        actions, DeterministicPolicy.load(tmp_path).act(rows[None])[0], rtol=1e-4, atol=1e-4
    )
    other = (
        DeterministicPolicy.load(tmp_path, "epochs.safetensors").one(0).act(rows[None])[0].numpy()
    )
    assert np.abs(actions - other).max() > 0.01
    assert ((actions >= LOW.numpy()) & (actions <= HIGH.numpy())).all()
    batch: Any = policy.act(ROWS.tolist())
    assert (batch.shape, batch.dtype) == ((3, 2), np.float32)
    np.testing.assert_allclose(policy.act(torch.tensor(ROWS[1])), batch[1], rtol=1e-5)
    policy = loaded(tmp_path, discrete=True)
    one_hot = DeterministicPolicy.load(tmp_path).act(torch.from_numpy(ROWS).float()[None])[0]
    numbers, one = policy.act(ROWS), policy.act(ROWS[2])
    assert (numbers.dtype, numbers.tolist()) == (np.int64, one_hot.argmax(-1).tolist())  # type: ignore[union-attr]
    assert (type(one), one) == (int, numbers[2])  # type: ignore[index]


MASKED = np.ma.array([0.0, 1.0, 5.0], mask=[0, 1, 0])
WRONG: tuple[tuple[Any, str], ...] = (
    ([1.0, 2.0], r"observation: found shape 2; allowed: \[3\] or \[n, 3\]"),
    (np.array([0.5, "1", 5.0], dtype=object), "observation: not numbers"),
    ([[1.0, 2.0, 3.0], [1.0]], "observation: not numbers"),
    (MASKED, "observation: dose is not a finite"),
    ([1e300, 0.0, 5.0], "observation: age is not a finite"),
    ([[0.0, 0.0, 5.0], [0.0, 33.0, 5.0]], r"observation\[1\]: dose lies far outside"),
)


def test_what_cannot_be_answered_is_one_line(tmp_path: Path) -> None:
    policy = loaded(tmp_path, **RANGE, **NAMES)
    for given, says in WRONG:
        with pytest.raises(ObservationError, match=says) as refused:
            policy.act(given)
        assert isinstance(refused.value, OutsideRangeError) is ("far outside" in says)
    assert policy.reasons(ROWS) == [""] * 3


def test_a_log_s_policy_answers_one_standard_deviation_outside_the_range(tmp_path: Path) -> None:
    policy, simulated = loaded(tmp_path, **LOG), loaded(tmp_path / "simulated", **RANGE)
    policy.act([-10.9, 11.9, 5.4])
    for far in ([-11.1, 0.0, 5.0], [0.0, 12.1, 5.0]):
        with pytest.raises(OutsideRangeError):
            policy.act(far)
        simulated.act(far)
    with pytest.raises(OutsideRangeError, match="observation_0 lies far"):
        simulated.act([-31.1, 0.0, 5.0])
    low, high = simulated.answerable_range
    assert (low.tolist(), high.tolist()) == ([-31.0, -32.0, 4.5], [31.0, 32.0, 5.5])
    anything = loaded(tmp_path)
    anything.act([-1e9, 1e9, 0.0])
    assert np.isinf(anything.answerable_range).all()


def test_a_row_that_is_two_categories_or_none_is_not_answered(tmp_path: Path) -> None:
    """Twins: one category; and a policy without categories, whatever its names."""
    rows = np.array([[1, 0, 5], [0, 1, 5], [1, 1, 5], [0, 0, 5], [2, -1, 5]])
    names = (("meal=none", "meal=snack", "x=1"), ("up", "down"))
    policy = loaded(tmp_path, **RANGE, one_hot=((0, 2),), names=names)
    assert policy.reasons(rows) == ["", "", *["meal is not exactly one of its categories"] * 3]
    with pytest.raises(OutsideRangeError, match=r"observation\[2\]: meal is not"):
        policy.act(rows)
    plain = loaded(tmp_path, **RANGE, names=(("bp=sys", "bp=dia", "age"), ("up", "down")))
    assert not any(plain.reasons(rows))


def test_a_config_that_contradicts_the_weights_is_refused(tmp_path: Path) -> None:
    loaded(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for about in (
        {"observation_low": [0.0], "observation_high": [1.0]},
        {"observation_names": ["a"]},
        {"one_hot": [[0, 99]]},
    ):
        file.write_text(json.dumps(config | about), encoding="utf-8")
        with pytest.raises(PipelineError, match=r"not a policy|not as declared"):
            read_policy(tmp_path)
