"""Audit of online updates: ``python -m benchmarks.privacy.online_critic --trials 1000``.

First the mechanism: canaries of norm S through `Cohort.noisy_mean`, and the same claim with half the noise.

Then a critic that is carried from user to user. A canary is among the users of the first of two cohorts of DPPG, or an
empty user is in her place, by a fair coin. Her rewards are far from the others'. The adversary knows all trajectories
and sees both releases; she computes what the second would be without noise in either case, and compares. Where updates
are strict, the second release says nothing about the canary. With ``guarantee="paper"`` she moves the critic, which
moves what all users of the second cohort contribute, and the release tells her by far more than the stated ε.

Results: benchmarks/results/online_critic.json.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from benchmarks.machine import row, write
from primorl.online.advantages import Guarantee
from primorl.online.dppg import DPPG, RELEASED
from primorl.online.learning import Values
from primorl.online.mechanism import Cohort, online_plan
from primorl.online.network import PolicyNetwork
from primorl.online.trajectories import Trajectories
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.audits.bounds import LowerBound, Observations, lower_bound
from primorl.privacy.audits.intervals import clopper_pearson
from primorl.privacy.mechanism.plan import Plan
from primorl.setup.audits import CONFIDENCE
from primorl.setup.simulated_users import SimulatedUsers
from primorl.simulators.batches import batch

USERS, STEPS, DELTA, Z = 8, 64, 1e-5, 3.73
REWARD = -1000.0  # of the canary's steps; the others' are 1
CANARIES, SPARE, RUNS = 64, 16, 2048
GUARANTEES: tuple[Guarantee, ...] = ("strict", "paper")


@dataclass(frozen=True)
class Scene:
    """Two cohorts, and the policy under which both act.

    Attributes:
        network: shape of the policy.
        parameters: ``[d]``.
        first: with the canary as user 0.
        second: cohort after it.
    """

    network: PolicyNetwork
    parameters: Tensor
    first: Trajectories
    second: Trajectories


class Quiet(Cohort):
    """Keeps what would be released without noise, but with the clip, and releases what it is told to."""

    def __init__(self, plan: Plan, told: Tensor | None = None):
        super().__init__(plan, 1)
        self.told, self.mean = told, torch.empty(0)

    def noisy_mean(self, contributions: Tensor | Iterable[Tensor], clipping_norm: float) -> Tensor:
        """See `Cohort.noisy_mean`."""
        rows = contributions if isinstance(contributions, Tensor) else torch.cat(list(contributions))
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        self.mean = (rows * (clipping_norm / norms).clamp(max=1.0)).sum(0) / self.users
        return self.mean if self.told is None else self.told


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="runs of both cohorts, half of them with the canary")
    trials = parser.parse_args().trials
    command = f"python -m benchmarks.privacy.online_critic --trials {trials}"
    plan = planned(Z)
    claimed = epsilon(Z)
    rows = []
    for what, run in (("as planned", plan), ("half the noise", planned(Z / 2))):
        found = audit_cohort(plan, run)
        name = f"mechanism, {what}: lower bound on ε, the claim, share"
        rows.append(row(command, name, found.epsilon, claimed, "the claim", found.epsilon / claimed, "epsilon"))
    scene = made()
    for guarantee in GUARANTEES:
        update = DPPG(0.5, 0.02, 16, 4, guarantee=guarantee)
        moved, ratios, included = attacked(update, scene, plan, trials)
        distance = float(np.median(moved))
        exact = epsilon(Z / distance) if distance > 0 else 0.0
        for name, figure, peer, peer_name, unit in (
            ("how far the canary moves the second sum, in units of S (median)", distance, 0.0, "what is stated", "S"),
            ("ε of the second release by the exact mechanism at that distance", exact, claimed, "the claim", "epsilon"),
            ("share of right guesses from the second release", share_right(ratios, included), 0.5, "a coin", "share"),
            (
                "ε of the second release that the guesses prove",
                proved(ratios, included),
                claimed,
                "the claim",
                "epsilon",
            ),
        ):
            ratio = figure / peer if peer else 0.0
            rows.append(row(command, f"{guarantee}: {name}", figure, peer, peer_name, ratio, unit))
        write("online_critic", rows)


def planned(z: float) -> Plan:
    """The plan of a run in which every user is met once."""
    return online_plan(users=2000, cohort=USERS, noise_multiplier=z, releases=1, appearances=1, delta=DELTA)


def epsilon(z: float) -> float:
    """ε of one Gaussian release."""
    return Training(1.0, z, 1).spent(DELTA).epsilon_pld


def audit_cohort(claim: Plan, run: Plan) -> LowerBound:
    """The mechanism's audit through `Cohort.noisy_mean`.

    Args:
        claim: whose ε is to be refuted.
        run: what is really run.
    """
    norm = 0.3
    generator = np.random.default_rng()
    included = generator.random((RUNS, CANARIES)) < 0.5
    seen = np.empty((RUNS, CANARIES))
    hostile = torch.randn(SPARE, CANARIES + SPARE) * norm
    hostile[:, :CANARIES] = 0.0
    hostile[-1] = torch.nan
    audited = online_plan(
        users=CANARIES + SPARE,
        cohort=CANARIES + SPARE,
        noise_multiplier=run.noise_multiplier,
        releases=1,
        appearances=1,
        delta=DELTA,
    )
    canaries = torch.eye(CANARIES, CANARIES + SPARE) * 10 * norm
    for number in range(RUNS):
        present = torch.from_numpy(included[number]).unsqueeze(1)
        mean = Cohort(audited, 1).noisy_mean(torch.cat([canaries * present, hostile]), norm)
        seen[number] = (mean[:CANARIES].double() * (CANARIES + SPARE) / norm).numpy()
    flat = seen.reshape(-1, 1)
    return lower_bound(
        claim, Observations(included.reshape(-1), flat, flat), epsilon(claim.noise_multiplier), CONFIDENCE
    )


def made() -> Scene:
    """Users of CartPole under a random network; the canary is one of them, with rewards of her own."""
    cartpole = batch("CartPole-v1")
    users = SimulatedUsers(cartpole, STEPS, None, 0)
    network = PolicyNetwork(
        (16,),
        torch.zeros(cartpole.observation_size),
        torch.tensor([2.4, 2.0, 0.2, 2.0]),
        torch.from_numpy(cartpole.action_low),
        torch.from_numpy(cartpole.action_high),
        cartpole.discrete_actions,
    )
    parameters = network.initial(0)
    first, second = (users.meet(range(at, at + USERS), network, parameters) for at in (0, USERS))
    first.rewards[0] *= REWARD
    return Scene(network, parameters, first, second)


def attacked(
    update: DPPG, scene: Scene, plan: Plan, trials: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Both cohorts, many times, and what the second release tells.

    Returns:
        How far the canary moves the second sum, in units of S; log-likelihood ratios of the second release, high where
        she seems to be in; whether she was. ``[trials]`` each.
    """
    empty = Trajectories(**{name: value.clone() for name, value in vars(scene.first).items()})
    for value in vars(empty).values():
        value[0] = 0
    begun = update.begin(scene.network, scene.parameters)
    firsts, afters = [], []
    for data in (empty, scene.first):  # the critic after the first cohort does not depend on what is released
        quiet = Quiet(plan)
        afters.append(update.updated(scene.network, begun, data, quiet, 0))
        firsts.append(quiet.mean)
    scale = plan.noise_multiplier * update.clipping_norm / USERS
    included = np.random.default_rng().random(trials) < 0.5
    moved, ratios = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        released = firsts[int(included[trial])] + torch.randn_like(firsts[0]) * scale
        out, within = (second_mean(update, scene, plan, released, after) for after in afters)
        seen = (within if included[trial] else out) + torch.randn_like(out) * scale
        difference = (within - out).double()
        moved[trial] = float(torch.linalg.vector_norm(difference)) * USERS / update.clipping_norm
        ratios[trial] = float((seen.double() - (within + out).double() / 2) @ difference) / scale**2
    return moved, ratios, included


def second_mean(update: DPPG, scene: Scene, plan: Plan, released: Tensor, after: Values) -> Tensor:
    """What the second cohort would release without noise, given the first release and the critic, if there is one."""
    values = dict(after) | {"parameters": scene.parameters + update.learning_rate * released, RELEASED: released}
    quiet = Quiet(plan)
    update.updated(scene.network, values, scene.second, quiet, 1)
    return quiet.mean


def guesses(ratios: Sequence[float] | NDArray[np.float64]) -> NDArray[np.bool_]:
    """In where the ratio is above 0; where it says nothing, a coin."""
    values = np.asarray(ratios)
    coins = np.random.default_rng().random(len(values)) < 0.5
    return np.where(values == 0, coins, values > 0)


def share_right(ratios: NDArray[np.float64], included: NDArray[np.bool_]) -> float:
    """Share of right guesses."""
    return float((guesses(ratios) == included).mean())


def proved(ratios: NDArray[np.float64], included: NDArray[np.bool_]) -> float:
    """ε that the rates of the guesses prove at 95% of a Gaussian release, which the second is given the first.

    With Clopper-Pearson bounds of both rates, the means are at least Φ⁻¹(TPR) - Φ⁻¹(FPR) standard deviations apart.
    """
    inside = guesses(ratios)
    right, wrong, there = (int(np.count_nonzero(x)) for x in (inside & included, inside & ~included, included))
    hits, _ = clopper_pearson(right, there, CONFIDENCE)
    _, alarms = clopper_pearson(wrong, len(included) - there, CONFIDENCE)
    apart = float(ndtri(hits) - ndtri(alarms))
    return epsilon(1 / apart) if apart > 0 else 0.0


if __name__ == "__main__":
    main()
