"""Cumulative regret on Riverswim: DPPG-KL and DPPG-L2, as in Figures 1 and 5 of the DPPG paper.

python -m research.riverswim

Each of 1,000 users acts for one episode of 20 steps, in 100 runs. DPPG learns with noise of ε at δ
= 1e-5 by the exact accountant. Regret is the optimal value, by dynamic
programming, less the rewards of each user. Settings:

- paper: those of the DPPG paper, Appendix C: one user for each update, η from 12, divided by 5
  every 50 users, at least 0.06, α 3.5, 1 - β 0.6, γ 0.99, 25 public episodes for the Fisher matrix
  and its regulariser 0.001. The policy is log-linear in the paper's features, one-hot(state) beside
  one-hot(action). Those of the state cancel in the softmax, so the policy is the same in all
  states.
- own: ten users for each update, η 1, and for DPPG-KL α 100; chosen among 45 settings with other
  transitions than those of the rows.

Modes of DPPG, to tell what makes the rewards:

- learning: gradients are clipped to S, and noise is added.
- noise alone: the gradient is zero, and the noise stays.
- clip alone: S stays, and no noise is added.
- neither: no clip and no noise.

The return is the advantage: there is no baseline. Random: uniformly random actions.

Rows: research/results/riverswim.jsonl. Draws benchmarks/figures/riverswim.png.

Riverswim is a chain of six states, in which the large reward is up the river (Strehl and Littman
2008). Transitions are those of Osband, Van Roy and Russo (2013, "(More) efficient reinforcement
learning via posterior sampling", Figure 1). Action 0 swims left and always succeeds; at the left
bank it brings 5/1000. Action 1 swims right: from the left bank it succeeds with probability 0.6;
between the banks it succeeds with 0.35, stays with 0.6 and drifts left with 0.05; at the right bank
it stays there with probability p, which brings 1, and drifts left otherwise. Osband et al. have p =
0.6; Rio et al. (DPPG, Section 6) also have p = 0.9.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import ncx2

from benchmarks.machine import RESULTS_PAGE, put
from primorl.online.learning import online_mechanism
from primorl.privacy.accounting.figures import solve_noise_multiplier
from research.rows import FIGURES, Row, complete_rows

S, A, H = 6, 2, 20  # states, actions, horizon
USERS, RUNS, EVERY, DELTA, PUBLIC, DISCOUNT, FAILURE, REGULARISER = (
    1000,
    100,
    50,
    1e-5,
    25,
    0.99,
    0.4,
    1e-3,
)
EPSILONS, PROBABILITIES = (1.0, 5.0), (0.6, 0.9)
ALGORITHMS = {
    "dppg-kl": "DPPG-KL",
    "dppg-l2": "DPPG-L2",
    "random": "random actions",
}
MODES = ("learning", "noise alone", "clip alone")
Floats: TypeAlias = NDArray[np.float64]
Whole: TypeAlias = NDArray[np.int64]

FEATURES: Floats = np.zeros((S, A, S + A))  # one-hot(state) beside one-hot(action)
FEATURES[:, :, :S] = np.eye(S)[:, None]
FEATURES[:, :, S:] = np.eye(A)


@dataclass(frozen=True)
class Step:
    """A noisy step of DPPG-L2 or DPPG-KL, whose clipping norm S keeps it in a trust region (Rio et
    al., Section 4.2).

    Δθ = η (ḡ + ξ), where ḡ is the mean of m users' vectors of norm at most S, and ξ is N(0, (ρS)²
    I). The paper has m = 1, so that ρ is the noise multiplier z; here ρ = z / m.

    Attributes:
        learning_rate: η.
        noise: ρ.
        failure: β, with which the step may be larger than it should.
    """

    learning_rate: float
    noise: float
    failure: float

    def l2_norm(self, region: float, parameters: int) -> float:
        """Proposition 4.4: the largest S for which ½‖Δθ‖² ≤ α with probability at least 1 - β.

        ½‖Δθ‖² is ½ η² ρ² S² times a non-central χ² variable of d degrees and non-centrality at most
        ρ⁻².

        Args:
            region: α.
            parameters: d.
        """
        if self.noise == 0:
            return math.sqrt(2 * region) / self.learning_rate
        quantile = _quantile(1 - self.failure, parameters, self.noise**-2)
        return math.sqrt(2 * region / quantile) / (self.learning_rate * self.noise)

    def kl_norm(self, region: float, fisher: Floats) -> Floats:
        """Proposition 4.7: an S for which ½ Δθᵀ F Δθ ≤ α with probability at least 1 - β, by
        Markov's inequality.

        Args:
            region: α; approximately the mean KL divergence between the policies before and after
                the step.
            fisher: F ``[.., d, d]``, public.

        Returns:
            S for each F, ``[..]``.
        """
        eigenvalues = np.linalg.eigvalsh(fisher)
        spread = eigenvalues[..., -1] + self.noise**2 * eigenvalues.sum(-1)
        norms: Floats = np.sqrt(2 * region * self.failure / spread) / self.learning_rate
        return norms


_quantile = lru_cache(maxsize=16)(ncx2.ppf)  # every cohort of a run asks for the same one


@dataclass(frozen=True)
class Settings:
    """Settings that differ between the two.

    Attributes:
        rate: η of the first cohort, its divisor after every 50 cohorts, and the least η.
        cohort: m.
        regions: α.
    """

    rate: tuple[float, float, float]
    cohort: int
    regions: dict[str, float]

    def learning_rate(self, number: int) -> float:
        """Compute η of a cohort, numbered from 0."""
        first, factor, least = self.rate
        return max(first / factor ** (number // 50), least)


SETTINGS = {
    "paper": Settings((12.0, 5.0, 0.06), 1, {"dppg-l2": 3.5, "dppg-kl": 3.5}),
    "own": Settings((1.0, 1.0, 1.0), 10, {"dppg-l2": 3.5, "dppg-kl": 100.0}),
}


class Riverswim:
    """Rivers that step together; everybody begins at the left bank.

    Args:
        p: probability of the large reward at the right bank.
        shape: of the rivers.
        random: source of the transitions.
    """

    def __init__(self, p: float, shape: tuple[int, ...], random: np.random.Generator):
        self._cumulated = transition_probabilities(p).cumsum(-1)[..., :-1]
        self._random = random
        self.states = np.zeros(shape, np.int64)

    def step(self, actions: Whole) -> Floats:
        """Move all, and return their rewards."""
        uniform = self._random.random((*actions.shape, 1))
        after = (uniform >= self._cumulated[self.states, actions]).sum(-1)
        found: Floats = rewards()[self.states, actions, after]
        self.states = after
        return found


def transition_probabilities(p: float) -> Floats:
    """Tabulate the probability of each next state, ``[S, A, S]``."""
    found = np.zeros((S, A, S))
    for state in range(S):
        found[state, 0, max(state - 1, 0)] = 1
        if 0 < state < S - 1:
            found[state, 1, state - 1 : state + 2] = 0.05, 0.6, 0.35
    found[0, 1, :2] = 0.4, 0.6
    found[-1, 1, -2:] = 1 - p, p
    return found


def rewards() -> Floats:
    """Tabulate the reward of each transition, ``[S, A, S]``."""
    found = np.zeros((S, A, S))
    found[0, 0, 0] = 5 / 1000
    found[-1, 1, -1] = 1.0
    return found


def optimal_value(p: float) -> float:
    """Compute the best mean reward of an episode, by backward induction."""
    moves, values = transition_probabilities(p), np.zeros(S)
    for _ in range(H):
        values = (moves * (rewards() + values)).sum(-1).max(-1)
    return float(values[0])


@dataclass(frozen=True)
class Episodes:
    """Episodes under R policies, n each. Sensitive, where they are not public.

    Attributes:
        totals: sums of rewards, ``[R, n]``.
        counts: how often each action was taken in each state, ``[R, n, S, A]``.
        returns: sums of the discounted rewards that followed, ``[R, n, S, A]``.
    """

    totals: Floats
    counts: Floats
    returns: Floats


def play(p: float, policies: Floats, each: int, random: np.random.Generator) -> Episodes:
    """Play ``each`` episodes under policies: probabilities ``[R, S, A]``."""
    runs = len(policies)
    shape = runs, each, S, A
    river, run, cells, paid = Riverswim(p, (runs, each), random), np.arange(runs)[:, None], [], []
    episode = np.arange(runs * each).reshape(runs, each)
    for _ in range(H):
        actions = (random.random((runs, each)) < policies[run, river.states, 1]).astype(np.int64)
        cells.append((episode * S + river.states) * A + actions)
        paid.append(river.step(actions))
    following, returns = np.zeros((runs, each)), np.zeros(math.prod(shape))
    for cell, own in zip(reversed(cells), reversed(paid), strict=True):
        following = own + DISCOUNT * following
        returns[cell] += following  # the cells of one step differ
    counts = np.bincount(np.concatenate(cells, None), minlength=math.prod(shape)).astype(np.float64)
    return Episodes(np.sum(paid, axis=0), counts.reshape(shape), returns.reshape(shape))


def policies_and_scores(theta: Floats) -> tuple[Floats, Floats]:
    """Compute π ``[R, S, A]`` and ∇ log π ``[R, S, A, d]`` of parameters ``[R, d]``."""
    logits = np.einsum("sad,rd->rsa", FEATURES, theta)
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    policies = odds / odds.sum(-1, keepdims=True)
    return policies, FEATURES - np.einsum("rsa,sad->rsd", policies, FEATURES)[:, :, None]


def fisher_matrices(scores: Floats, counts: Floats) -> Floats:
    """Average ∇ log π ∇ log πᵀ over the steps of episodes, plus the regulariser: ``[R, d, d]``."""
    shares = counts.sum(1) / counts.sum((1, 2, 3))[:, None, None]
    spread = np.einsum("rsa,rsad,rsae->rde", shares, scores, scores, optimize=True)
    found: Floats = spread + REGULARISER * np.eye(scores.shape[-1])
    return found


def dppg(key: Row, settings: Settings) -> Floats:
    """Run DPPG: rewards of each user, ``[USERS, RUNS]``."""
    p, m, region, mode = key["p"], settings.cohort, settings.regions[key["algorithm"]], key["mode"]
    z = 0.0 if mode == "neither" else solve_noise_multiplier(float(key["epsilon"]), DELTA, 1.0, 1)
    mechanism = online_mechanism(users=USERS, cohort=m, noise_multiplier=z, releases=1, delta=DELTA)
    random, theta, totals = np.random.default_rng(0), np.zeros((RUNS, FEATURES.shape[-1])), []
    for number in range(USERS // m):
        policies, scores = policies_and_scores(theta)
        met = play(p, policies, m, random)
        totals.append(met.totals.T)
        step = Step(settings.learning_rate(number), z / m, FAILURE)
        norms: float | Floats = math.inf
        if mode != "neither" and key["algorithm"] == "dppg-kl":
            public = play(p, policies, PUBLIC, random)
            norms = step.kl_norm(region, fisher_matrices(scores, public.counts))[:, None]
        elif mode != "neither":
            norms = step.l2_norm(region, theta.shape[1])
        gradients = np.einsum("rusa,rsad->urd", met.returns, scores, optimize=True)
        if mode == "noise alone":
            gradients *= 0
        lengths = np.linalg.norm(gradients, axis=-1, keepdims=True)
        total = (gradients * np.minimum(1, norms / np.maximum(lengths, 1e-12))).sum(0)
        if mode in (
            "learning",
            "noise alone",
        ):  # the mechanism adds the noise to sums of vectors of norm at most 1
            moved = mechanism.release(torch.from_numpy(total / norms)).numpy() * norms
        else:
            moved = total / m
        theta = theta + step.learning_rate * moved
    return np.concatenate(totals)


def make_row(key: Row) -> Row:
    """Run the algorithm of a row: its regret at the end and on the way, with standard errors over
    the runs.
    """
    settings, p = SETTINGS[key["settings"]], key["p"]
    if key["algorithm"] == "random":
        uniform = np.full((RUNS, S, A), 1 / A)
        returns = play(p, uniform, USERS, np.random.default_rng(0)).totals.T
    else:
        returns = dppg(key, settings)
    best = optimal_value(p)
    curves = (best - returns).cumsum(0)[EVERY - 1 :: EVERY]
    errors = curves.std(1, ddof=1) / math.sqrt(RUNS)
    return {
        "regret": round(float(curves[-1].mean()), 1),
        "error": round(float(errors[-1]), 1),
        "curve": curves.mean(1).round().tolist(),
        "errors": errors.round().tolist(),
    }


def draw(path: Path, rows: list[Row]) -> None:
    """Draw cumulative regrets with 95% intervals: p side by side, settings below each other."""
    figure = Figure(figsize=(10, 7.5), dpi=120, layout="constrained")
    axes = figure.subplots(len(SETTINGS), len(PROBABILITIES), sharex=True, squeeze=False)
    styles = {("learning", "1.0"): "-", ("learning", "5.0"): "--", ("noise alone", "1.0"): ":"}
    users = np.arange(EVERY, USERS + 1, EVERY)
    for row in rows:
        if (style := styles.get((row["mode"], row["epsilon"]))) is None:
            continue
        here = axes[list(SETTINGS).index(row["settings"]), PROBABILITIES.index(row["p"])]
        curve, errors = np.array(row["curve"]), 1.96 * np.array(row["errors"])
        color = f"C{list(ALGORITHMS).index(row['algorithm'])}"
        name = f"{ALGORITHMS[row['algorithm']]}, {row['mode']}, ε {float(row['epsilon']):g}"
        here.plot(users, curve, style, color=color, label=name)
        here.fill_between(
            users, curve - errors, curve + errors, color=color, alpha=0.1, linewidth=0
        )
        here.set(
            title=f"p = {row['p']}, {row['settings']} settings",
            xlabel="users",
            ylabel="cumulative regret",
        )
    lines, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


def row_keys() -> list[Row]:
    """List the rows."""
    cases = [("paper", "random", "learning", math.inf)]
    for settings in SETTINGS:
        cases += [
            (settings, algorithm, mode, epsilon)
            for algorithm, mode, epsilon in product(("dppg-kl", "dppg-l2"), MODES, EPSILONS)
        ]
        # without a clip DPPG-KL is the same
        cases.append((settings, "dppg-l2", "neither", math.inf))
    names = "settings", "algorithm", "mode", "epsilon"
    return [
        dict(zip(names, (*case[:-1], str(case[-1])), strict=True)) | {"p": p}
        for case in cases
        for p in PROBABILITIES
    ]


def table(rows: list[Row]) -> str:
    """Write DPPG's regrets beside those of its nulls; bold: below noise alone by more than the
    error.
    """
    head = [f"p {p}: {mode}" for p, mode in product(PROBABILITIES, MODES)]
    lines = [f"| settings | algorithm | ε | {' | '.join(head)} |", "|---" * 9 + "|"]
    for settings, name, epsilon in product(SETTINGS, ("dppg-kl", "dppg-l2"), EPSILONS):
        line = f"| {settings} | {ALGORITHMS[name]} | {epsilon:g}"
        for p in PROBABILITIES:
            key = {"settings": settings, "algorithm": name, "p": p, "epsilon": str(epsilon)}
            learning, noise, clip = (_find(rows, key | {"mode": mode}) for mode in MODES)
            error = 1.96 * math.hypot(learning["error"], noise["error"])
            better = learning["regret"] < noise["regret"] - error
            first = f"**{_regret(learning)}**" if better else _regret(learning)
            line += f" | {first} | {_regret(noise)} | {_regret(clip)}"
        lines.append(f"{line} |")
    for settings, name, mode in (
        ("paper", "random", "learning"),
        *((settings, "dppg-l2", "neither") for settings in SETTINGS),
    ):
        key = {"settings": settings, "algorithm": name, "mode": mode}
        found = [f"{_regret(_find(rows, key | {'p': p}))} | – | –" for p in PROBABILITIES]
        named = ALGORITHMS[name] + ", no clip and no noise" * (mode == "neither")
        lines.append(f"| {settings} | {named} | ∞ | {' | '.join(found)} |")
    return "\n".join(lines)


def _find(rows: list[Row], key: Row) -> Row:
    return next(row for row in rows if row.items() >= key.items())


def _regret(row: Row) -> str:
    return f"{row['regret']:.0f} ± {1.96 * row['error']:.0f}"


def main() -> None:
    """Make the rows that are missing, write the tables of benchmarks/results.md, and draw."""
    rows = complete_rows("riverswim", row_keys(), make_row)
    put(RESULTS_PAGE, "riverswim", table(rows))
    draw(FIGURES / "riverswim.png", rows)


if __name__ == "__main__":
    main()
