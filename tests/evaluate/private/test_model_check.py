"""The model check: its errors against loops over steps, its bound, and when it says that a model is
believable.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from primorl.evaluate.private.model_check import ModelCheck, _factor
from primorl.evaluate.private.problem import BLOCK, Episodes, Problem, in_blocks
from tests.evaluate.private.conftest import tiny_log, tiny_problem

CHECK = ModelCheck(horizons=(1, 3, 4, 9), starts=3, cap=1.5)
NOTHING = torch.empty(0, dtype=torch.float64)


def slow_errors(problem: Problem, rows: Episodes, unit: int, begin: int, h: int) -> list[float]:
    """Squared errors after h steps from one start: reward and state, of the model and of the
    trivial prediction.
    """
    normaliser, scale = problem.ensemble.normaliser, problem.ensemble.normaliser.input_scale[:3]
    start = state = rows.observation[unit, begin]
    for row in range(begin, begin + h):
        change = problem.ensemble.predict(
            state[None].float(), rows.action[unit, row][None].float()
        )[0].mean(0)[0]
        state = (state + change[:3]).clamp(0, 1)
    last = begin + h - 1
    reward, said = float(rows.reward[unit, last]), min(max(float(change[3]), 0.0), 1.0)
    spread = float(normaliser.target_scale[-1])
    gaps = (said - reward) / spread, (reward - float(normaliser.target_mean[-1])) / spread
    states = [
        float((((one - rows.following[unit, last]) / scale) ** 2).mean()) for one in (state, start)
    ]
    return [min(square, 1.5**2) for square in (gaps[0] ** 2, gaps[1] ** 2, *states)]


def slow_unit(
    problem: Problem, rows: Episodes, unit: int, h: int, starts: int
) -> list[float] | None:
    """Mean over the trajectories that have h steps of the mean over their evenly spaced starts."""
    firsts = rows.begins[unit].nonzero().flatten().tolist()
    ends, found = [*firsts[1:], int(rows.own[unit].sum())], []
    for first, end in zip(firsts, ends, strict=True):
        length = end - first
        begins = sorted({i * length // starts for i in range(starts)})
        own = [slow_errors(problem, rows, unit, first + b, h) for b in begins if b + h <= length]
        if own:
            found.append(torch.tensor(own).mean(0))
    return torch.stack(found).mean(0).tolist() if found else None


@pytest.mark.parametrize("starts", [1, 3, 50])
def test_errors_equal_the_slow_ones(starts: int) -> None:
    rows, problem = tiny_log(8).episodes(), tiny_problem(8)
    errors, has = replace(CHECK, starts=starts).errors(problem, rows)
    for unit in range(8):
        for i, h in enumerate((1, 3, 4)):  # 9 is beyond the declared horizon
            expected = slow_unit(problem, rows, unit, h, starts)
            assert bool(has[unit, i]) == (expected is not None)
            assert errors[unit, i].flatten().tolist() == pytest.approx(
                expected or [0.0] * 4, abs=1e-5
            )
    assert not has.all()


def test_a_prediction_that_is_not_finite_is_the_largest_error() -> None:
    """The twin: the sound model, whose errors are smaller. The guess's own errors stay."""
    rows, problem = tiny_log(8).episodes(), tiny_problem(8)
    *others, bias = problem.ensemble.weights
    broken = replace(problem.ensemble, weights=(*others, bias * torch.nan))
    errors, has = CHECK.errors(replace(problem, ensemble=broken), rows)
    sound, _ = CHECK.errors(problem, rows)
    assert torch.all(errors[has][..., 0] == 1.5**2)
    assert torch.all(sound[has][..., 0].mean(0) < 1.5**2)
    assert torch.equal(errors[..., 1], sound[..., 1])


def test_rows_are_asked_in_blocks_of_one_size_on_one_thread() -> None:
    seen, before = list[tuple[int, int]](), torch.get_num_threads()

    def noted(rows: Tensor) -> Tensor:
        seen.append((len(rows), torch.get_num_threads()))
        return rows

    torch.set_num_threads(3)
    try:
        assert torch.equal(in_blocks(noted, torch.eye(BLOCK + 1)), torch.eye(BLOCK + 1))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [(BLOCK, 1)] * 2


def test_estimates_without_noise_are_means_over_the_units_that_have_so_many_steps() -> None:
    source, problem = tiny_log(120), tiny_problem(120)
    errors, has = CHECK.errors(problem, source.episodes())
    released = CHECK.contributions(problem, source.episodes(), 1.0, NOTHING).mean(0)
    said = CHECK.estimates(problem, 1e-9, released)
    expected = (errors.sum(0) / has.sum(0)[:, None, None]).sqrt().flatten().tolist()
    assert [estimate.value for estimate in said] == pytest.approx(expected, abs=1e-4)
    assert said[-1].what == "state error, 4 steps ahead, of no change"


TWICE, MANY = ModelCheck(horizons=(1, 5), starts=1, cap=1.5), tiny_problem(3000)


def release(*errors: list[list[float]]) -> Tensor:
    """Squared errors of reward and state, of the model and of the trivial prediction, as they are
    released after one step, and after five unless nobody has so many.
    """
    x = 2 * torch.tensor(errors, dtype=torch.float64) / 1.5**2 - 1
    nobody = torch.zeros(8 * (2 - len(errors)))
    pairs = torch.stack((x, 1 - x**2), -1).flatten()
    reached = torch.tensor([2.0 * len(errors) - 3])
    return torch.cat((pairs, nobody, reached)) * _factor((1, 5))


@pytest.mark.parametrize(
    ("model", "trivial", "noise", "believable", "ratio", "wrong"),
    [
        (0.1, 1.0, 1e-6, "yes", 0.1, ()),
        (0.1, 1.0, 0.2, "doubtful", 0.1, ()),
        (0.8, 1.0, 1e-6, "doubtful", 0.8, ()),
        (1.1, 1.0, 1e-6, "no", 1.1, ("reward",)),
        (2.0, 1.0, 1e-3, "no", 2.0, ("reward",)),
        (0.0, 0.0, 0.5, "doubtful", None, ()),
    ],
)
def test_the_verdict_is_sure_or_says_that_it_is_not(
    model: float,
    trivial: float,
    noise: float,
    believable: str,
    ratio: float | None,
    wrong: tuple[str, ...],
) -> None:
    released = release([[model, trivial], [0.01, 0.5]], [[model, trivial], [0.01, 0.5]])
    found = TWICE.verdict(MANY, noise, released)
    assert (found.believe, found.wrong) == (believable, wrong)
    assert found.horizons == ((1, 5) if noise < 0.3 else (1,))
    assert found.ratio == (None if ratio is None else pytest.approx(ratio, abs=1e-3))


def test_a_horizon_that_nobody_reaches_is_not_judged() -> None:
    nobody = release([[0.1, 1.0], [0.01, 0.5]])
    found = TWICE.verdict(MANY, 1e-3, nobody)
    assert (found.believe, found.horizons) == ("yes", (1,))
    assert all("1 step ahead" in each.what for each in TWICE.estimates(MANY, 1e-3, nobody))


def test_rewards_of_an_outcome_are_judged_one_step_ahead() -> None:
    """Those who are there later are those to whom it has not come. Twin: rewards of all rows."""
    released = release(*([[reward, 0.5], [0.01, 0.5]] for reward in (0.1, 2.0)))
    bounds = replace(MANY.bounds, before_end=(0.0, 0.0))
    outcome = replace(MANY, ensemble=replace(MANY.ensemble, bounds=bounds))
    scale = float(MANY.ensemble.normaliser.target_scale[-1])
    assert TWICE._caps(outcome).tolist() == pytest.approx([1 / scale, 1.5]), "no error is cut"
    assert TWICE.verdict(MANY, 1e-3, released).believe == "no"
    assert TWICE.verdict(outcome, 1e-3, released).believe == "yes"
