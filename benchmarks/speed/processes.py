"""Two processes of one thread each beside one process, on two cores, with real cohorts (q = 0.1).

python -m benchmarks.speed.processes [--repeats 7]

One process is measured three ways: on one core (one thread, which reads its rows itself), with its rows read ahead on
the other core, and with two threads. All take turns, so that a slow minute of the machine falls on all.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.machine import interleaved, machine, write
from primorl.attacks.units import Units
from primorl.dynamics.architecture import Architecture
from primorl.dynamics.normaliser import Normaliser
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.plan import Plan
from primorl.privacy.mechanism.sampling import PoissonSampler
from primorl.setup import launcher
from primorl.setup.compute import is_worker
from primorl.training.distributed import DistributedRounds, Group, serve
from primorl.training.rounds import Rounds
from primorl.training.settings import CHUNK_BYTES, Execution
from tests.units import local_training, training_setup

CPU = torch.device("cpu")
Q, PROCESSES = 0.1, 2
# N, width, T, qK, rounds a turn
SHAPES = ((3, 64, 200, 300, 8), (5, 128, 1000, 60, 2))


def parts(members: int, width: int, transitions: int, cohort: int) -> tuple[Architecture, Plan, Normaliser]:
    """What all processes agree on."""
    shape = Architecture(3, 1, members, (width, width), -10.0, 0.5)
    plan = Plan(
        round(cohort / Q),
        "trajectory",
        PoissonSampler(Q),
        EnsembleClip(0.5, "flat", members, len(shape.layers)),
        5.0,
        1,
        1e-5,
    )
    ones, zeros = torch.ones, torch.zeros
    sizes = shape.inputs, shape.targets
    return shape, plan, Normaliser(zeros(sizes[0]), ones(sizes[0]), zeros(sizes[1]), ones(sizes[1]))


def source_of(plan: Plan, shape: Architecture, transitions: int) -> Units:
    """The units that ``plan`` holds."""
    inputs = torch.randn(len(plan.local_units), transitions, shape.inputs)
    return Units(inputs, torch.sin(inputs))


def rounds_of(
    plan: Plan, shape: Architecture, source: Units, normaliser: Normaliser, *, read_ahead: bool = False
) -> Rounds:
    """Rounds on ``source``."""
    execution = Execution(CPU, CHUNK_BYTES["cpu"], read_ahead)
    setup = training_setup(plan, shape, local=local_training(0.01), execution=execution)
    return Rounds(setup, source, normaliser)


def lead(repeats: int) -> list[dict[str, object]]:
    """The first process: measures both ways."""
    rows: list[dict[str, object]] = []
    command = [sys.executable, "-m", "benchmarks.speed.processes"]
    for number, (members, width, transitions, cohort, turn) in enumerate(SHAPES):
        shape, plan, normaliser = parts(members, width, transitions, cohort)
        weights = shape.initial_weights(0)
        with (
            launcher.started(PROCESSES, [*command, "--shape", str(number)]) as watch,
            Group(watch=watch) as group,
        ):
            first = plan.of_process(0, PROCESSES)
            own = rounds_of(first, shape, source_of(first, shape, transitions), normaliser)
            shared = DistributedRounds(group, own, normaliser)
            source = source_of(plan, shape, transitions)
            alone = [rounds_of(plan, shape, source, normaliser, read_ahead=ahead) for ahead in (False, True)]

            def together(rounds: DistributedRounds = shared, weights=weights, turn=turn, plan=first) -> None:  # type: ignore[no-untyped-def]
                torch.set_num_threads(1)
                for _ in range(turn):
                    plan.release(rounds.sum(weights))

            def single(threads: int, ahead: bool, rounds=alone, weights=weights, turn=turn, plan=plan) -> None:  # type: ignore[no-untyped-def]
                torch.set_num_threads(threads)
                with rounds[ahead] as mine:
                    for done in range(turn):
                        plan.release(mine.sum(weights, last=done == turn - 1))

            ways: list[Callable[[], None]] = [
                together,
                lambda: single(1, ahead=False),
                lambda: single(1, ahead=True),
                lambda: single(2, ahead=False),
            ]
            with shared:
                ours, *others = (seconds / turn for seconds in interleaved(ways, repeats))
        torch.set_num_threads(1)
        peers = (
            "one process, one thread: one core",
            "one process, one thread, rows read ahead on the other core",
            "one process, two threads",
        )
        for peer, name in zip(others, peers, strict=True):
            rows.append(
                {
                    "what": f"private rounds of two processes, qK {cohort}, q {Q}, N {members}, 2x{width}, "
                    f"T {transitions}, B 16, beside {name}",
                    "ours": 1 / ours,
                    "peer": 1 / peer,
                    "peer_name": name,
                    "ratio": peer / ours,
                    "unit": "rounds/s",
                    "machine": machine(),
                    "command": f"python -m benchmarks.speed.processes --repeats {repeats}",
                }
            )
    return rows


def follow(number: int) -> None:
    """The second process."""
    launcher.begin_worker()
    torch.set_num_threads(1)
    members, width, transitions, cohort, _ = SHAPES[number]
    shape, plan, _ = parts(members, width, transitions, cohort)
    with Group() as group:
        own = plan.of_process(group.process, group.processes)
        serve(group, {}, shape, CPU, partial(rounds_of, own, shape, source_of(own, shape, transitions)))


def main() -> None:
    """Measure, or be measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shape", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if is_worker():
        follow(arguments.shape)
    else:
        write("processes", lead(arguments.repeats))


if __name__ == "__main__":
    main()
