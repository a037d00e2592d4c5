"""Settings that the policy stage fits: from public rows where there are some, else from declared
facts.
"""

import math
import sys
from dataclasses import dataclass, fields, replace
from functools import cached_property

import torch
from pydantic import ValidationError
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import read_json
from primorl.base.paths import BEHAVIOUR, MANIFEST, MODEL, PLAN
from primorl.config.blocks import Policy
from primorl.config.datasets import checked
from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.evaluate.private.problem import STARTS, PublicTrajectories, Recordings
from primorl.model.ensemble import GaussianEnsemble, evidence
from primorl.model.numerics import SeedGenerators
from primorl.model.termination import LEARNED, NONE
from primorl.policy.behaviour import BehaviourPolicy, released
from primorl.policy.config import DISCOUNT, SacConfig
from primorl.policy.member_values import DIVERGENCES, DIVERGENCES_OF_HEADS, CandidateComparison
from primorl.policy.optimisation import CloneReference
from primorl.simulators.environments import reset_states
from primorl.work.data import open_public

# what a return of one standard deviation a step is scaled to, and its steps
_RETURN = 10.0
_LONGEST_RETURN = 100
# times as large without a clone: entropy starts high and falls slowly
_ALONE = 3.0
_LONGEST_ROLLOUT, _PART, _TRANSITIONS = 20, 5, 5_000
_FAR = 0.2  # share of a trajectory that γ looks ahead, at least
_OF_MODEL = (
    "reward_scale",
    "horizon",
    "reset_fraction",
    "discount",
    "rollout_batch",
    "buffer_size",
)
_BUFFER = 100_000


@dataclass(frozen=True)
class PublicLog(Recordings[UnitStore]):
    """The public rows that stand for the private units, as the policy stage sees them."""

    @classmethod
    def open(cls, params: Params) -> "PublicLog":
        """Read the public split; raises the errors of `open_public`."""
        return cls.of(MODEL, open_public(params))

    @cached_property
    def trajectories(self) -> PublicTrajectories | None:
        """Every public trajectory; a unit may have several, and each counts once."""
        if self.public is None:
            return None
        found = PublicTrajectories.of(self.public)
        return replace(found, weight=torch.ones_like(found.weight))

    @property
    def mean_return(self) -> tuple[float, float] | None:
        """Mean undiscounted return of a public trajectory and its standard error; None: fewer than
        two are public.
        """
        if self.trajectories is None or len(self.trajectories.length) < 2:
            return None
        returns = self.trajectories.reward.sum(1)
        return float(returns.mean()), float(returns.std()) / math.sqrt(len(returns))

    def step_shares(self, ends: str | None) -> Tensor:
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
        if self.public is None and environment is not None and not params.privacy.statistics.starts:
            return torch.from_numpy(reset_states(environment, STARTS, params.seed))
        return self.first_states(params.seed)

    def start_states(self, params: Params, starts: str) -> Tensor:
        """Return ``[n, S]``: public states, draws from the released start model, or resets, as
        ``policy.starts`` asks.

        Raises:
            PipelineError: no unit is public, or no start model was released.
        """
        if starts == "released":
            return PublicLog(MODEL, None).first_states(params.seed)
        if starts != "public":
            assert params.chosen.environment is not None  # checked when params.yaml is read
            return torch.from_numpy(reset_states(params.chosen.environment, STARTS, params.seed))
        if self.public is None:
            raise PipelineError(
                "params.yaml: policy.starts: found public, and no unit is public "
                "(partition.public_fraction); allowed: reset, released "
                "(privacy.statistics.starts)"
            )
        return self.public.flat()[0][:, : self.public.observation_size]

    def believes(self, model: GaussianEnsemble) -> bool:
        """Whether the public rows support how the model ends episodes; declared rules need no
        support. Says so if not.

        A learned end that is wrong is a way out of all costs that would follow.
        """
        if model.termination != LEARNED:
            return True
        if self.public is None:
            print(
                "optimize_policy: no public rows support learned terminations: not used",
                file=sys.stderr,
            )
            return False
        inputs, targets = self.public.flat()
        found = evidence(model, inputs, targets[:, -1] > 0)
        if not found.supports:
            print(
                f"optimize_policy: the model's learned terminations are not used: {found.why}",
                file=sys.stderr,
            )
        return found.supports


def clone_reference(
    params: Params, public: PublicLog, model: GaussianEnsemble, device: torch.device
) -> CloneReference:
    """Load the clone that policies are regularised towards, and set up the comparison of
    candidates.

    Raises:
        PipelineError: the clone's files are missing or broken, or it is of other actions than the
            model.
    """
    cpu = torch.device("cpu")
    behaviour, bounds = BehaviourPolicy.load(BEHAVIOUR, cpu), model.bounds
    clone = behaviour.policy
    same = clone.discrete_actions == bounds.discrete_actions and all(
        torch.equal(mine, its)
        for mine, its in (
            (clone.action_low, bounds.action_low),
            (clone.action_high, bounds.action_high),
        )
    )
    if not same or clone.observation_size != model.architecture.observation_size:
        raise PipelineError(
            f"{BEHAVIOUR}: of other observations or actions than {MODEL}; run `dvc repro`"
        )
    comparison = CandidateComparison(
        ensemble=model,
        clone=released(behaviour, SeedGenerators.of([params.seed], cpu)),
        starts=public.begin(params),
        weights=public.step_shares(NONE if model.termination == NONE else None),
        seed=params.seed,
        observed=public.mean_return,
        divergences=DIVERGENCES if model.architecture.features is None else DIVERGENCES_OF_HEADS,
    )
    return CloneReference(BehaviourPolicy.load(BEHAVIOUR, device), comparison)


def planned_policy() -> Policy:
    """Read the block ``policy`` as the stage ``plan`` decided it; None: of the released model.

    Raises:
        PipelineError: ``data/plan.json`` is missing or broken.
    """
    try:
        return checked(Policy, read_json(PLAN)["policy"])
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
    5,000 transitions.

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
    batch = policy.rollout_batch or max(64, math.ceil(_TRANSITIONS / horizon))
    discount = max(DISCOUNT, 1 - 1 / (_FAR * length))
    return replace(
        policy,
        reward_scale=policy.reward_scale or scale,
        horizon=horizon,
        reset_fraction=policy.reset_fraction or resets,
        discount=policy.discount or discount,
        rollout_batch=batch,
        buffer_size=policy.buffer_size or max(_BUFFER, batch * horizon),
    )


def sac_config(policy: Policy) -> SacConfig:
    """Return the settings of SAC, all decided."""
    return SacConfig(**{each.name: getattr(policy, each.name) for each in fields(SacConfig)})
