"""Settings that the policy stage fits: from public rows where there are some, else from declared
facts.
"""

import math
from dataclasses import dataclass, replace

import torch
from pydantic import ValidationError
from torch import Tensor

from primorl.base import PipelineError, say
from primorl.base.files import BEHAVIOUR, MANIFEST, MODEL, PLAN, read_json
from primorl.config.datasets import validate
from primorl.config.params import Params, Policy
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.problem import STARTS, Recordings
from primorl.evaluate.private.results import RARE_END
from primorl.model.ensemble import GaussianEnsemble, judge_ends
from primorl.model.numerics import SeedGenerators
from primorl.model.pessimism import survival_in_model
from primorl.model.starts import survival_of
from primorl.model.termination import LEARNED, NONE, Ends
from primorl.policy.behaviour import BehaviourPolicy, SampledClone, make_released
from primorl.policy.config import DISCOUNT
from primorl.policy.optimisation import (
    DIVERGENCES,
    DIVERGENCES_OF_HEADS,
    CandidateComparison,
)
from primorl.privacy.statement import Statement
from primorl.simulators.environments import reset_states
from primorl.work.data import open_public

# what a return of one standard deviation a step is scaled to, and its steps
_RETURN = 10.0
_LONGEST_RETURN = 100
# times as large without a clone: entropy starts high and falls slowly
_ALONE = 3.0
_LONGEST_ROLLOUT, _PART, _FEWEST, _TRANSITIONS = 20, 5, 100, 5_000
_FAR = 0.2  # share of a trajectory that γ looks ahead, at least
_USUAL_RATE, _FASTEST_RATE, _SETTLED = 0.005, 0.02, 4.0
"""Of target critics: as usual, at most, and in how many times 1 / (τ (1 - γ)) updates values are
learned."""
_OF_MODEL = (
    "reward_scale",
    "horizon",
    "reset_fraction",
    "discount",
    "target_rate",
    "rollout_batch",
    "buffer_size",
)
_BUFFER, _KEPT = 100_000, 1 / 3  # transitions that are kept, and their share of all, at least
# of learned ends: how far S(t) may be off beside `RARE_END`, in standard deviations of a share's
# noise; rollouts that tell it, and the search
_OF_NOISE = 3.0
_ROLLOUTS, _LARGEST_OFFSET, _HALVINGS = 512, 1.0, 12
_LENGTHS = "lengths"  # the query's name in privacy.json


@dataclass(frozen=True)
class PublicLog(Recordings):
    """The public rows that stand for the private units, as the policy stage sees them."""

    public: UnitStore | None

    @classmethod
    def open(cls, params: Params) -> "PublicLog":
        """Read the public split; raises the errors of `open_public`."""
        return cls.of(MODEL, open_public(params))

    @property
    def mean_return(self) -> tuple[float, float] | None:
        """Mean undiscounted return of a public trajectory and its standard error; None: fewer than
        two are public.
        """
        if self.trajectories is None or len(self.trajectories.length) < 2:
            return None
        returns = self.trajectories.reward.sum(1)
        return float(returns.mean()), float(returns.std()) / math.sqrt(len(returns))

    def step_shares(self, ends: Ends) -> Tensor:
        """Estimate S(t), float64 ``[T]``; ones up to the declared horizon where nothing tells it.

        Args:
            ends: see `Recordings.survival`.
        """
        if self.trajectories is not None:
            horizon = int(self.trajectories.length.max())
        else:
            horizon = Manifest.load(MANIFEST).declared_horizon()
        found = self.survival(horizon, ends)
        return torch.ones(horizon, dtype=torch.float64) if found is None else found

    def reward_std(self, model: GaussianEnsemble) -> float:
        """Standard deviation of public rewards; 1 for 0.

        Where nothing is public: the charged scale.
        """
        if self.public is None:
            spread = float(model.normaliser.target_scale[-1])
        else:
            spread = float(
                self.public.flat()[1][:, self.public.observation_size].double().std(correction=0)
            )
        return spread if spread > 0 else 1.0

    def begin(self, params: Params) -> Tensor:
        """Return first states ``[n, S]``: public ones, else the released start model's, else the
        environment's.
        """
        environment = params.chosen.environment
        if self.public is None and environment is not None and not params.asks_starts:
            return torch.from_numpy(reset_states(environment, STARTS, params.seed))
        return self.first_states(params.seed)

    def start_states(self, params: Params, starts: str) -> Tensor:
        """Return ``[n, S]``: public states, draws from the released start model, or resets, as
        ``policy.starts`` asks.

        Raises:
            PipelineError: no start model was released.
        """
        if starts == "released":
            return PublicLog(MODEL, None).first_states(params.seed)
        if starts != "public":
            assert params.chosen.environment is not None  # checked when params.yaml is read
            return torch.from_numpy(reset_states(params.chosen.environment, STARTS, params.seed))
        assert self.public is not None  # or the split would have been refused
        return self.public.flat()[0][:, : self.public.observation_size]


def find_ends(
    params: Params, public: PublicLog, model: GaussianEnsemble, *, near_clone: bool
) -> Ends:
    """Decide how rollouts end; declared rules need no support. Says so where learned ends are not
    used: a wrong one is a way out of all costs that would follow.

    Public rows support them; where nobody is public, the released lengths of the people's episodes.
    """
    if model.termination != LEARNED:
        return None
    found: Ends = None
    if public.public is not None:
        inputs, targets = public.public.flat()
        supported, why = judge_ends(model, inputs, targets[:, -1] > 0)
    elif near_clone and (lengths := survival_of(MODEL, by_model=False)) is not None:
        found, gap = _fit_ends(params, public.begin(params), model, lengths)
        allowed = RARE_END + _OF_NOISE * _noise_of_lengths()
        supported = gap <= allowed
        why = (
            f"a clone's share of episodes that go on differs from the people's by {gap:.2f} "
            f"(allowed {allowed:.2f})"
        )
    else:
        supported, why = False, "no public rows, or no clone and released lengths, support them"
    if supported:
        return found
    say(f"optimize_policy: the model's learned terminations are not used: {why}")
    return NONE


def _fit_ends(
    params: Params, starts: Tensor, model: GaussianEnsemble, lengths: Tensor
) -> tuple[float, float]:
    """Find the offset of the learned termination at which a clone's episodes last as long as the
    people's; and how far S(t) is then from the released ``lengths``, on average over the steps.
    """
    cpu = torch.device("cpu")
    behaviour, cut = BehaviourPolicy.load(BEHAVIOUR, cpu), survival_of(MODEL, by_model=True)

    def goes_on(offset: float) -> Tensor:
        drawn = SampledClone(behaviour, SeedGenerators.of([params.seed], cpu))
        ended = survival_in_model(
            model.with_ends(offset),
            drawn,
            starts,
            rollouts=_ROLLOUTS,
            horizon=len(lengths),
            seed=params.seed,
        )
        return ended if cut is None else ended * cut

    low, high = -_LARGEST_OFFSET, _LARGEST_OFFSET
    for _ in range(_HALVINGS):
        offset = (low + high) / 2
        too_short = goes_on(offset).sum() < lengths.sum()
        low, high = (offset, high) if too_short else (low, offset)
    return offset, float((goes_on(offset) - lengths).abs().mean())


def _noise_of_lengths() -> float:
    """Return the noise of every share of the released lengths."""
    stated = Statement.read(MODEL)
    asked = {query.what: query for query in stated.queries}[_LENGTHS]
    return asked.noise_multiplier * asked.sensitivity / stated.units


def compare_clone(
    params: Params, public: PublicLog, model: GaussianEnsemble, device: torch.device
) -> CandidateComparison:
    """Load the clone that policies are regularised towards, and set up the comparison of
    candidates.

    Raises:
        PipelineError: the clone's files are missing or broken, or it is of other actions than the
            model.
    """
    cpu = torch.device("cpu")
    behaviour, bounds = BehaviourPolicy.load(BEHAVIOUR, cpu), model.bounds
    clone = behaviour.policy
    ends = (clone.action_low, bounds.action_low), (clone.action_high, bounds.action_high)
    same = all(torch.equal(*pair) for pair in ends)
    same = same and clone.discrete_actions == bounds.discrete_actions
    if not same or clone.observation_size != model.architecture.observation_size:
        raise PipelineError(
            f"{BEHAVIOUR}: of other observations or actions than {MODEL}; run `dvc repro`"
        )
    return CandidateComparison(
        prior=BehaviourPolicy.load(BEHAVIOUR, device),
        ensemble=model,
        clone=make_released(behaviour, SeedGenerators.of([params.seed], cpu)),
        starts=public.begin(params),
        weights=public.step_shares(NONE if model.termination == NONE else None),
        seed=params.seed,
        observed=public.mean_return,
        divergences=DIVERGENCES if model.architecture.features is None else DIVERGENCES_OF_HEADS,
    )


def read_planned_policy() -> Policy:
    """Read the block ``policy`` as the stage ``plan`` decided it; None: of the released model.

    Raises:
        PipelineError: ``data/plan.json`` is missing or broken.
    """
    try:
        return validate(Policy, read_json(PLAN)["policy"])
    except (KeyError, TypeError, ValidationError):
        raise PipelineError(f"{PLAN}: policy: broken; run `dvc repro plan`") from None


def is_undecided(policy: Policy) -> bool:
    """Whether the released model is to decide a key."""
    return None in (getattr(policy, name) for name in _OF_MODEL)


def decide_policy(
    policy: Policy, public: PublicLog, model: GaussianEnsemble, *, near_clone: bool
) -> Policy:
    """Decide what needs the released model; set keys stay.

    Rewards are scaled so that the return of a trajectory (of at most 100 steps) spreads over about
    10, which the entropy and the divergence are measured against. A batch of rollouts has about
    5,000 transitions, or a hundred long rollouts, and at least a third of all batches are kept.

    A rollout has 20 steps, or a fifth of a long trajectory. Where states of public people do not
    spread over all that happens, rollouts go on where others ended, so that starts are as frequent
    as in trajectories.
    """
    if not is_undecided(policy):
        return policy
    length = float(public.step_shares(NONE).sum())
    scaled = _RETURN * (1.0 if near_clone else _ALONE)
    scale = scaled / (public.reward_std(model) * min(length, _LONGEST_RETURN))
    longest = _LONGEST_ROLLOUT
    if policy.starts != "public":
        longest = max(longest, round(length / _PART))
    horizon = policy.horizon or max(1, min(longest, round(length)))
    resets = 1.0 if policy.starts == "public" else min(1.0, horizon / length)
    batch = policy.rollout_batch or max(_FEWEST, math.ceil(_TRANSITIONS / horizon))
    updates = (policy.epochs or 0) * (policy.updates_per_epoch or 0)
    kept = max(1, round(_KEPT * (updates // policy.rollout_every))) * batch * horizon
    discount = policy.discount or max(DISCOUNT, 1 - 1 / (_FAR * length))
    rate = _USUAL_RATE
    if not near_clone and discount < 1:
        settled = _SETTLED / max(1.0, updates * (1 - discount))
        rate = min(max(settled, _USUAL_RATE), _FASTEST_RATE)
    return replace(
        policy,
        reward_scale=policy.reward_scale or scale,
        horizon=horizon,
        reset_fraction=policy.reset_fraction or resets,
        discount=discount,
        target_rate=policy.target_rate or rate,
        rollout_batch=batch,
        buffer_size=policy.buffer_size or max(_BUFFER, kept),
    )
