"""The public policy: the environment's own actions, as evaluation computes them, and one line for what cannot be."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import primorl
from primorl.policy.exported import DeterministicPolicy, save
from primorl.policy.loaded import ObservationError, Policy
from primorl.project.errors import PipelineError
from tests.policy.test_exported import EPOCHS, HIGH, LOW

RANGE: dict[str, Any] = {"observation_range": (torch.tensor([-10.0, -10.0, 5.0]), torch.tensor([10.0, 10.0, 5.0]))}
NAMES: dict[str, Any] = {"names": (("age", "dose", "weight"), ("up", "down"))}
ROWS = np.array([[0.5, -9.0, 5.0], [1.0, 2.0, 5.5], [-3.0, 8.0, 4.9]])


def loaded(folder: Path, *, discrete: bool = False, **about: Any) -> Policy:
    save(
        folder,
        [replace(one, discrete_actions=discrete) for one in EPOCHS],
        variant="private",
        environment=None,
        **about,
    )
    return primorl.load_policy(folder)


def test_it_acts_as_the_policy_that_is_evaluated(tmp_path: Path) -> None:
    policy = loaded(tmp_path)
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)) * 5
    expected = DeterministicPolicy.load(tmp_path).act(rows[None])[0].numpy()
    actions = policy.act(rows)
    np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-4)
    other = DeterministicPolicy.load_epochs(tmp_path).one(0).act(rows[None])[0].numpy()
    assert np.abs(actions - other).max() > 0.01, "the twin: another epoch's policy acts otherwise"
    assert (actions >= LOW.numpy()).all()
    assert (actions <= HIGH.numpy()).all()


@pytest.mark.parametrize(
    "given",
    [ROWS, ROWS.tolist(), torch.from_numpy(ROWS), ROWS.astype(np.float32), torch.tensor(ROWS, requires_grad=True)],
)
def test_one_observation_or_a_batch_without_dummy_dimensions(tmp_path: Path, given: Any) -> None:
    policy = loaded(tmp_path)
    batch = policy.act(given)
    assert isinstance(batch, np.ndarray)
    assert (batch.shape, batch.dtype) == ((3, 2), np.float32)
    one = policy.act(given[1])
    assert isinstance(one, np.ndarray)
    assert one.shape == (2,)
    np.testing.assert_allclose(one, batch[1], rtol=1e-5)
    assert policy.act(np.zeros((0, 3))).shape == (0, 2)  # type: ignore[union-attr]


def test_discrete_actions_are_integers(tmp_path: Path) -> None:
    policy = loaded(tmp_path, discrete=True)
    batch = policy.act(ROWS)
    assert isinstance(batch, np.ndarray)
    assert (batch.shape, batch.dtype) == ((3,), np.int64)
    one_hot = DeterministicPolicy.load(tmp_path).act(torch.from_numpy(ROWS).float()[None])[0]
    assert batch.tolist() == one_hot.argmax(-1).tolist()
    one = policy.act(ROWS[2])
    assert type(one) is int
    assert one == batch[2]
    assert (policy.discrete_actions, policy.action_size, policy.observation_size) == (True, 2, 3)


def test_it_knows_the_names_of_columns_and_actions(tmp_path: Path) -> None:
    policy = loaded(tmp_path, **NAMES)
    assert policy.observation_names == ("age", "dose", "weight")
    assert policy.action_names == ("up", "down")
    assert loaded(tmp_path).observation_names == ()


WRONG: dict[str, tuple[Any, str]] = {
    "too narrow": ([1.0, 2.0], r"observation: found shape 2; allowed: \[3\] or \[n, 3\]"),
    "too wide": (np.zeros((4, 5)), "observation: found shape 4x5; allowed"),
    "a dimension too many": (np.zeros((1, 2, 3)), "observation: found shape 1x2x3; allowed"),
    "a number": (1.0, "observation: found shape a single number; allowed"),
    "nothing": ([], "observation: found shape 0; allowed"),
    "words": (["a", "b", "c"], r"observation: not numbers; give \[3\] or \[n, 3\]"),
    "ragged": ([[1.0, 2.0, 3.0], [1.0]], "observation: not numbers"),
    "nan": ([0.0, float("nan"), 5.0], r"observation\[1\] \(dose\): is not a finite number"),
    "infinite": ([[0.0, 0.0, 5.0], [0.0, 0.0, float("-inf")]], r"observation\[1, 2\] \(weight\): is not a finite"),
    "beyond float32": ([1e300, 0.0, 5.0], r"observation\[0\] \(age\): is not a finite number"),
    "far below": ([-31.1, 0.0, 5.0], r"observation\[0\] \(age\): lies far outside the public range \[-10, 10\]"),
    "far above": ([[0.0, 0.0, 5.0], [0.0, 33.0, 5.0]], r"observation\[1, 1\] \(dose\): lies far outside the public"),
    "a constant column": ([0.0, 0.0, 6.0], r"observation\[2\] \(weight\): lies far outside the public range \[5, 5\]"),
}


@pytest.mark.parametrize(("given", "says"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_answered_is_one_line(tmp_path: Path, given: Any, says: str) -> None:
    policy = loaded(tmp_path, **RANGE, **NAMES)
    with pytest.raises(ObservationError, match=says) as refused:
        policy.act(given)
    assert isinstance(refused.value, ValueError)
    assert "\n" not in str(refused.value)


def test_values_a_little_outside_the_range_are_answered(tmp_path: Path) -> None:
    """Up to the width of the range, and one standard deviation, beyond it; without a range, any finite number."""
    policy = loaded(tmp_path, **RANGE)
    policy.act([-30.9, 31.9, 5.4])
    with pytest.raises(ObservationError, match=r"observation\[0\]: lies far"):
        policy.act([-31.1, 0.0, 5.0])
    loaded(tmp_path).act([-1e9, 1e9, 0.0])


@pytest.mark.parametrize(
    "about",
    [
        {"observation_low": [0.0], "observation_high": [1.0]},
        {"observation_low": [2.0] * 3, "observation_high": [1.0] * 3},
        {"observation_low": ["x"] * 3, "observation_high": ["y"] * 3},
        {"observation_names": ["a"]},
        {"action_names": [1, 2]},
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused(tmp_path: Path, about: dict[str, Any]) -> None:
    loaded(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | about), encoding="utf-8")
    with pytest.raises(PipelineError, match=r"(not a policy|not as declared).*run `dvc repro optimize_policy`") as bad:
        primorl.load_policy(tmp_path)
    assert "\n" not in str(bad.value)


def test_a_missing_policy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"config.json: not there"):
        primorl.load_policy(tmp_path)


def test_unknown_public_names_are_attribute_errors() -> None:
    assert {"Statement", "load_model", "load_policy"} <= set(dir(primorl))
    assert primorl.Statement.__name__ == "Statement"
    with pytest.raises(AttributeError, match="has no attribute 'load_dataset'"):
        primorl.load_dataset  # noqa: B018
