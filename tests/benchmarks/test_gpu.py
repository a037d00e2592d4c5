"""What the GPU's benchmark computes beforehand and checks, as far as a CPU can run it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed import gpu, gpu_checks, sac
from benchmarks.speed.fixed_round import BATCH, FixedRound
from primorl.policy.replay import ReplayColumns
from primorl.training import cuda_graph as captured
from primorl.training.local_update import LocalBatches, sum_of_updates

CPU = torch.device("cpu")
TINY = FixedRound(members=2, width=8, transitions=40, cohort=3)
OTHER = FixedRound(members=2, width=8, transitions=20, cohort=2)
WIDE = FixedRound(members=1, width=128, transitions=BATCH, cohort=8)
SIZES = (3, 1, 32)


class Moved(TorchDispatchMode):
    """Adds up the bytes of what every operation reads and writes; a view moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Sequence[Any] = (), options: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(options or {})
        result = function(*arguments, **named)
        returned = function._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returned)
        if not is_view and "empty" not in str(function) and "unsafe_view" not in str(function):
            given = (*arguments, *(part for name, part in named.items() if name not in ("out", "grad_input")))
            read = [part for part in given if isinstance(part, torch.Tensor)]
            written = [result] if isinstance(result, torch.Tensor) else []
            self.bytes += sum(part.numel() * part.element_size() for part in (*read, *written))
        return result


def moved(size: FixedRound, steps: int) -> int:
    one = gpu_checks.fresh_batches(size)
    batches = LocalBatches(*(part.repeat(steps, *[1] * (part.dim() - 1)) for part in vars(one).values()))
    with Moved() as counted:
        sum_of_updates(size.weights, batches, size.shape, size.local, size.plan.clip)
    return counted.bytes


def test_a_rounds_traffic_is_what_its_operations_read_and_write() -> None:
    """A step more, so that what is done once a round falls out; inputs and outputs are the few per cent left out."""
    found = moved(WIDE, 2) - moved(WIDE, 1)
    assert gpu.traffic(WIDE) < found < 1.06 * gpu.traffic(WIDE)


def test_a_rounds_arithmetic_is_that_of_its_products() -> None:
    batches = gpu_checks.fresh_batches(TINY)

    def of_product(_: Any, left: tuple[int, ...], right: tuple[int, ...], **__: Any) -> int:
        return 2 * left[0] * left[1] * left[2] * right[2]

    in_place = {torch.ops.aten.baddbmm_: of_product}  # the counter knows the others
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        sum_of_updates(TINY.weights, batches, TINY.shape, TINY.local, TINY.plan.clip)
    assert counted.get_total_flops() == gpu.arithmetic(TINY)


@pytest.mark.parametrize(("observations", "actions"), [(17, 6), (3, 1)])
def test_an_updates_arithmetic_is_that_of_its_products(observations: int, actions: int) -> None:
    columns = ReplayColumns(observations, actions)
    made = gpu_checks.fresh(columns, 32, CPU, seed=0)
    with FlopCounterMode(display=False) as counted:
        made.update(gpu_checks.rows_of(columns, CPU, 0))
    assert counted.get_total_flops() == gpu.update_arithmetic(observations, actions, 32, sac.BATCH)


def test_the_longer_of_both_is_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.at_best("it", moved=10.0, multiplied=1.0, bandwidth=5.0, flops=1.0) == 2.0
    assert gpu.at_best("it", moved=10.0, multiplied=3.0, bandwidth=5.0, flops=1.0) == 3.0
    assert capsys.readouterr().out.count("limit of it") == 2


def test_sums_are_checked_and_a_unit_that_leaves_moves_nobody_else() -> None:
    assert gpu_checks.check_sums(TINY, OTHER) < 1e-5


def test_a_sum_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a graph that would go on with the weights of its first replay."""
    plainly = captured.SumOfUpdates._plainly
    monkeypatch.setattr(
        captured.SumOfUpdates, "_plainly", lambda self, start, *rest: plainly(self, TINY.weights, *rest)
    )
    with pytest.raises(AssertionError):
        gpu_checks.check_sums(TINY, OTHER)


def test_updates_are_checked() -> None:
    gpu_checks.check_updates(*SIZES, CPU)


def test_updates_with_other_noise_would_be_noticed() -> None:
    """The twin: a graph whose replays drew from elsewhere."""
    one, other = (gpu_checks.updated(*SIZES, CPU, captured=False, seed=seed) for seed in (0, 1))
    with pytest.raises(AssertionError, match="off by"):
        gpu_checks.close(other, one, "an update")


def test_a_gradient_that_is_off_would_be_noticed() -> None:
    """The twin: a hundredth of the length."""
    ours, autograds = gpu_checks.gradients(*SIZES, CPU)
    gpu_checks.close(ours, autograds, "a gradient")
    with pytest.raises(AssertionError, match="a gradient is off by"):
        gpu_checks.close(1.01 * ours, autograds, "a gradient")
