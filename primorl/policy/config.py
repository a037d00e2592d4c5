"""Settings of SAC.

The block ``policy`` of ``params.yaml`` inherits them; loading this module needs no torch.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from primorl.base import records
from primorl.base.files import replaced_directory
from primorl.base.records import record
from primorl.model.architecture import Variant
from primorl.model.termination import Ends


@dataclass(frozen=True, kw_only=True)
class SacConfig:
    """Settings of SAC (Haarnoja et al. 2018; PriMORL, Algorithm 4).

    Attributes:
        hidden: units of each hidden layer, of actor and critics alike.
        learning_rate: Adam's, of actor, critics and log α.
        discount: γ.
        target_rate: τ in target ← target + τ (critic - target).
        target_entropy: H̄ of actions in a box, scaled to [-1, 1].
        discrete_target_entropy: H̄ of discrete actions, as a share of the largest possible entropy,
            log A.
        reward_scale: multiplies every reward before the critics see it.
        batch_size: transitions an update.
        epochs: how often training reports.
        updates_per_epoch: updates between two reports.
        rollout_every: updates between two batches of rollouts.
        rollout_batch: rollouts in a batch, of each seed.
        horizon: H, steps of a rollout.
        buffer_size: transitions kept, of each seed.

    Raises:
        ValueError: the buffer is smaller than one batch of rollouts.
    """

    hidden: records.HiddenSizes = (64, 64)
    learning_rate: records.LearningRate = 3e-4
    discount: records.Share = 0.99
    target_rate: records.Probability = 0.005
    target_entropy: records.Finite
    discrete_target_entropy: records.Share = 0.3
    reward_scale: records.Positive
    batch_size: records.Steps = 256
    epochs: records.Steps
    updates_per_epoch: records.Steps
    rollout_every: records.Steps = 250
    rollout_batch: records.Steps
    horizon: records.Steps
    buffer_size: records.BufferSize

    def __post_init__(self) -> None:
        refuse_small_buffer(self.buffer_size, self.rollout_batch, self.horizon)

    def entropy_of(self, discrete_actions: int | None) -> float:
        """Return H̄, for so many discrete actions; None: for actions in a box."""
        if discrete_actions is None:
            return self.target_entropy
        return self.discrete_target_entropy * math.log(discrete_actions)


def refuse_small_buffer(buffer_size: int, rollout_batch: int, horizon: int) -> None:
    """Refuse (ValueError) a buffer that does not hold one batch of rollouts."""
    if buffer_size < rollout_batch * horizon:
        raise ValueError(
            "buffer_size must hold one batch of rollouts: at least rollout_batch * horizon"
        )


FILE, BEHAVIOUR_FILE, SPREAD = "config.json", "behaviour.json", "spread.safetensors"
GET_POLICY = (
    "name a policy's folder (--policy DIR); in a project `primorl run`, which says first "
    "what it charges, makes models/policy, and in a clone of one `dvc pull` fetches it"
)
"""What to do where no policy is there."""
NO_BEHAVIOUR = (
    "run `dvc repro clone_behaviour` to make it; what was paid for is restored at no cost"
)
DISCOUNT = 0.99
"""γ, of trajectories that are not long."""

Folder = Literal["models/policy", "models/behaviour", "models/online"]


@record
class CandidateRecord:
    """One of the policies of a seed that were trained near a clone of the behaviour; the best one
    is written.
    """

    divergence: Annotated[float, records.Within(gt=0)]
    """κ, at which KL(policy‖clone) was held: per dimension of actions in a box, or in all if they
    are discrete.
    """
    gains: tuple[float, ...]
    """Mean return in each member of the ensemble, less that of the clone's mean policy there."""
    doubt: float
    """How much more uncertain the model is along its way than along the clone's, in units of the
    return.
    """
    chosen: bool
    """Whether this is the policy."""


@record
class PolicyConfig(records.FileRecord):
    """Sizes and facts of an exported policy that its weights do not tell; from params.yaml and the
    model.
    """

    FILE_NAME: ClassVar[str] = FILE
    REMEDY: ClassVar[str] = GET_POLICY

    variant: Variant
    """`dynamics.variant` of params.yaml."""
    policy: Folder
    """Folder of the policy."""
    environment: records.Line | None
    """Id of the Gymnasium environment; `null`: no simulator."""
    seeds: tuple[Annotated[int, records.Within(ge=0)], ...] | None = None
    """Seeds of the policies that were trained together, the first one's in the folder itself;
    `null`: one seed.
    """
    observation_size: records.Count
    """Dimensions of an observation."""
    action_size: records.Count
    """Dimensions of an action, or the number of discrete actions."""
    hidden: tuple[records.Count, ...]
    """Units of every hidden layer."""
    discrete_actions: bool
    """Whether actions are discrete."""
    observation_names: tuple[records.Line, ...] | None = None
    """Names of the observation's dimensions: the model's."""
    one_hot: tuple[tuple[int, int], ...] | None = None
    """Parts of the observation of which one category is 1: first dimension and number of
    categories; `null`: none.
    """
    action_names: tuple[records.Line, ...] | None = None
    """Names of the action's dimensions or of the actions."""
    observation_low: tuple[float, ...] | None = None
    """Public range of observations: the model's bounds."""
    observation_high: tuple[float, ...] | None = None
    """Upper end of that range."""
    drawn: bool = False
    """Whether a discrete action is drawn, with probabilities softmax(output), as of a clone that
    acts as people do; `false`: the action of the largest output is taken.
    """
    epochs: records.Count
    """Epochs of training, one policy of each in `epochs.safetensors`."""
    ends: Ends = None
    """How rollouts ended. `none`: not by themselves, since nothing supports the model's learned
    termination; a number: by it, with so much taken off its output that a clone's episodes last as
    long as the people's; `null`: as the model says.
    """
    uncertainty: records.Line | None = None
    """Measure u of the penalised reward r - λu that it was trained on; `null`: not stated."""
    penalty: Annotated[float, records.Within(ge=0)] | None = None
    """λ of that reward; `null`: not stated."""
    candidates: tuple[CandidateRecord, ...] = ()
    """What the policy was chosen from: the one whose smallest gain, less 3 times its doubt, is
    largest, if that is above half of `clone_error`, or else the first; empty: there was no clone.
    """
    clone_error: Annotated[float, records.Within(ge=0)] | None = None
    """The difference between the model's value of the clone and the mean return of public episodes,
    less what their sampling explains; 0: none is public; `null`: there was no clone.
    """
    policy_sha256: records.Hexadecimal | None = None
    """SHA-256 of `policy.safetensors`."""
    model_sha256: records.Hexadecimal | None = None
    """SHA-256 of the model's file that it was trained in."""


@record
class BehaviourConfig(records.FileRecord):
    """``behaviour.json``: facts of a clone that are not those of any policy, or that none
    was made.
    """

    FILE_NAME: ClassVar[str] = BEHAVIOUR_FILE
    REMEDY: ClassVar[str] = NO_BEHAVIOUR

    made: bool
    """Whether there is a clone: it had a share of ε."""
    log_variance: tuple[float, float] | None = None
    """Bounds of the log-variance of actions scaled to [-1, 1]; `null`: discrete."""
    rounds: records.Count | None = None
    """Rounds in the weights."""
    engine_version: records.Count | None = None
    """Version of the engine that trained the weights."""
    rare_actions: tuple[Annotated[int, records.Within(ge=0)], ...] = ()
    """Discrete actions that it never takes, as people hardly ever took them."""
    persistence: tuple[records.Finite, records.NonNegative] | None = None
    """How alike two actions in a row deviate from it (0: by chance, 1: always), with noise, whose
    standard deviation stands beside it; `null`: nobody was asked, or the answer was lost.
    """
    products: tuple[records.Finite, records.NonNegative] | None = None
    """Share of what it leaves of actions that squares and products of columns explain, as if these
    were uncorrelated, with noise, and its standard error; `null`: nobody was asked, or the answer
    was lost.
    """
    warnings: tuple[records.Line, ...] = ()
    """What bars a trial of policies that are compared with it."""


def write_nothing(folder: Path) -> None:
    """Write in ``folder`` that no clone was made."""
    with replaced_directory(folder) as fresh:
        BehaviourConfig(made=False).write(fresh)
