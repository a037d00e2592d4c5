"""A private round beside the same round in pfl, Apple's simulator of private federated learning.

pip install --no-deps pfl==0.6.0 multiprocess dill prv-accountant   # its pin on dp-accounting excludes ours
python -m benchmarks.speed.pfl_round

pfl as its own benchmarks have it: `SimulatedBackend`, `FederatedAveraging`, the users' tensors in memory with their
batches cached, `GaussianMechanism` applied centrally, the ensemble as one module (all members in one batched product).
It trains user after user, and is run twice: with PriMORL's clip of every member after every local step, which is the
round that we run, as a training step of its own; and as pfl comes, with one clip of a user at the end, which is less
work. Neither shuffles a user's rows, as we do in secret. Rounds are timed in turns. Before that, without noise, both
must give the same mean update: with the clip of every step acting, and without any.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import Tensor

from benchmarks.machine import machine, write
from benchmarks.speed.fixed_round import BATCH, FixedRound
from primorl.attacks.units import Units
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.ensemble import row_losses
from primorl.training.local_update import LocalBatches, sum_of_updates

SIZES = [
    (FixedRound(members=3, width=64, transitions=200, cohort=30), 7),
    (FixedRound(members=3, width=64, transitions=200, cohort=300), 3),
    (FixedRound(members=5, width=128, transitions=1000, cohort=30), 3),
]


def main() -> None:
    """Check that both do the same work, time them in turns, keep the figures."""
    torch.set_num_threads(1)
    for members in (1, 3):
        free = FixedRound(members=members, width=64, transitions=200, cohort=20, clipping_norm=1e6)
        check(free, FederatedAveraging())
        check(replace(free, clipping_norm=0.05), ClippedSteps(replace(free, clipping_norm=0.05)))
    rows: list[dict[str, object]] = []
    for size, repeats in SIZES:
        for name, algorithm in (("every step", ClippedSteps(size)), ("once a user", FederatedAveraging())):
            ours, peer = race(size, algorithm, repeats)
            rows.append(
                {
                    "what": f"private round, {size.name}; pfl clips {name}",
                    "ours": ours,
                    "peer": peer,
                    "peer_name": f"pfl 0.6.0, PyTorch, one process, clipping {name}",
                    "ratio": peer / ours,
                    "unit": "s",
                    "machine": machine(),
                    "command": "python -m benchmarks.speed.pfl_round",
                }
            )
    write("pfl_round", rows)


class Ensemble(torch.nn.Module):
    """All members as pfl wants a model: the loss is the sum over members of their mean over rows."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.layers = torch.nn.ParameterList(shape.initial_weights(0))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """What every member loses on the same rows."""
        expanded = inputs.expand(self.shape.members, -1, -1)
        return row_losses(self.shape, tuple(self.layers), expanded, targets)[0].mean(1).sum()

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """None: nothing is evaluated."""
        return {}


class ClippedSteps(FederatedAveraging):
    """Holds every member's update to C/√N after every local step, as PriMORL's Algorithm 2 does."""

    def __init__(self, size: FixedRound) -> None:
        super().__init__()
        self._bound = size.plan.clip.bound

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> tuple[Any, Metrics]:
        """As pfl does, but for the training step."""
        start = list(dict(initial_model_state.items()).values())
        model.do_multiple_epochs_of(user_dataset, central_context.model_train_params, self._step, start=start)
        return model.get_model_difference(initial_model_state), Metrics()

    def _step(
        self, module: Ensemble, optimiser: Any, rows: Any, train_kwargs: Any, arguments: Any, *, start: list[Tensor]
    ) -> None:
        module.loss(*rows).backward()
        optimiser.step()
        optimiser.zero_grad()
        with torch.no_grad():
            now = list(module.layers)
            moved = torch._foreach_sub(now, start)
            norm = torch.cat([part.flatten(1) for part in moved], dim=1).norm(dim=1)
            factor = (self._bound / norm).clamp(max=1.0)[:, None, None]
            for weight, origin, part in zip(now, start, moved, strict=True):
                torch.addcmul(origin, part, factor, out=weight)


class InTurns(TrainingProcessCallback):
    """Times pfl's rounds, and after each of them a work of ours."""

    def __init__(self, ours: Any) -> None:
        self.ours, self.times = ours, ([], [])  # type: ignore[var-annotated]
        self._began = time.perf_counter()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Called by pfl when a round is done."""
        theirs = time.perf_counter() - self._began
        started = time.perf_counter()
        self.ours()
        ours = time.perf_counter() - started
        if central_iteration > 0:  # the first warms up
            self.times[0].append(ours)
            self.times[1].append(theirs)
        self._began = time.perf_counter()
        return False, Metrics()


def race(size: FixedRound, algorithm: FederatedAveraging, repeats: int) -> tuple[float, float]:
    """Median seconds of a round, ours and pfl's."""
    source, plan, weights = size.source(), size.plan, size.weights
    rounds = size.rounds(source)
    turns = InTurns(lambda: plan.release(rounds.sum(weights, last=True)))
    simulate(size, algorithm, source, plan.noise_multiplier, 1 + repeats, [turns])
    ours, theirs = turns.times
    return sorted(ours)[repeats // 2], sorted(theirs)[repeats // 2]


def simulate(
    size: FixedRound, algorithm: FederatedAveraging, source: Units, noise: float, rounds: int, callbacks: list[Any]
) -> list[Tensor]:
    """Run pfl's rounds; the weights after them."""
    users = {
        i: PyTorchTensorDataset((source.inputs[i], source.targets[i]), user_id=str(i)) for i in range(source.units)
    }
    sampler = get_user_sampler("minimize_reuse", list(users))
    mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism(size.clipping_norm, noise))
    data = FederatedDataset(users.__getitem__, sampler)
    module = Ensemble(size.shape)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    np.random.seed(0)
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=rounds, evaluation_frequency=10**6, train_cohort_size=size.cohort, val_cohort_size=0
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism]),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=size.local.learning_rate, local_batch_size=size.local.batch_size
        ),
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )
    return [w.detach() for w in module.layers]


def check(size: FixedRound, algorithm: FederatedAveraging) -> None:
    """Without noise, the mean update of all users is the same."""
    source, weights = size.source(), size.weights
    theirs = [
        after - before for after, before in zip(simulate(size, algorithm, source, 0.0, 1, []), weights, strict=True)
    ]
    own = (torch.arange(size.transitions + -size.transitions % BATCH) < size.transitions).float()
    own = own.view(-1, 1, BATCH).expand(-1, size.cohort, -1)
    batches = LocalBatches(by_step(source.inputs), by_step(source.targets), own / own.sum(-1, keepdim=True))
    total = sum_of_updates(weights, batches, size.shape, size.local, size.plan.clip)
    for one, other in zip(total, theirs, strict=True):
        torch.testing.assert_close((one / size.cohort).float(), other, rtol=0, atol=1e-4 * float(other.abs().max()))


def by_step(rows: Tensor) -> Tensor:
    """``[U, T, D]`` to ``[J, U, B, D]``, in their order, the last batch padded."""
    units, transitions, size = rows.shape
    padded = torch.nn.functional.pad(rows, (0, 0, 0, -transitions % BATCH))
    return padded.view(units, -1, BATCH, size).transpose(0, 1)


if __name__ == "__main__":
    main()
