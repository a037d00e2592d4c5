"""``config.json`` of a dynamics model. This class is the file's only writer and reader."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from primorl.base.records import ElapsedTime, Line, Within, read_record, record, write_record
from primorl.model.features import Polynomials

FILE = "config.json"
Variant = Literal["private", "no_privacy", "no_clip", "mopo"]

CanLearn = Literal["yes", "marginal", "no", "not_needed"]
"""Whether the settings of a training can learn, as far as is known before it.

``not_needed``: the public split alone makes a model that is as good.
"""

_Count = Annotated[int, Within(ge=1)]


@record
class PublicLosses:
    """Mean negative log-likelihood on the public split."""

    initial: Annotated[float, "Of the initial weights."]
    constant: Annotated[float, "Of the best constant prediction."]
    final: Annotated[float, "Of the weights in `model.safetensors`; below both, or the model is not written."]

    @property
    def diverged(self) -> bool:
        """Whether training made the model worse than its initial weights, or worse than a constant prediction."""
        return not self.final < min(self.initial, self.constant)


@record
class ModelConfig:
    """Sizes and facts of a model that its weights do not tell.

    Sizes and bounds come from the environment, params.yaml or the public split, never from private data.
    """

    FORMAT: ClassVar[int] = 1

    observation_size: Annotated[_Count, "Dimensions of an observation."]
    action_size: Annotated[_Count, "Dimensions of an action, or the number of discrete actions."]
    members: Annotated[_Count, "Members of the ensemble."]
    hidden: Annotated[tuple[_Count, ...], "Units of every hidden layer."]
    log_variance_low: Annotated[float, "Lower bound of the predicted log-variance."]
    log_variance_high: Annotated[float, "Upper bound of the predicted log-variance."]
    reward_low: Annotated[float, "Lower bound of rewards."]
    reward_high: Annotated[float, "Upper bound of rewards."]
    discrete_actions: Annotated[bool, "Whether actions are discrete (one-hot inputs)."]
    termination: Annotated[Line, "`none`, `learned` or the name of a declared rule."]
    environment: Annotated[Line | None, "Id of the Gymnasium environment; `null`: no simulator."]
    variant: Annotated[Variant, "`dynamics.variant` of params.yaml."]
    rounds: Annotated[
        Annotated[int, Within(ge=0)],
        "Rounds (or epochs) in the weights, after early stopping on the public split; 0: the public split alone.",
    ]
    observation_names: Annotated[tuple[Line, ...] | None, "Names of the observation's dimensions, as declared."] = None
    action_names: Annotated[tuple[Line, ...] | None, "Names of the action's dimensions or of the actions."] = None
    elapsed: Annotated[
        ElapsedTime | None, "The dimension that is the time since the row before, as declared; `null`: there is none."
    ] = None
    engine_version: Annotated[_Count | None, "Version of the engine that trained the weights."] = None
    public_loss: Annotated[PublicLosses | None, "Losses on the public split; `null`: there is none."] = None
    can_learn: Annotated[CanLearn | None, "The verdict before training; `null`: there is none."] = None
    degree: Annotated[_Count | None, "Largest degree of the features of linear heads; `null`: a network."] = None
    one_hot: Annotated[
        tuple[tuple[int, int], ...], "One-hot parts of the features' inputs: first column, number of categories."
    ] = ()

    @property
    def features(self) -> Polynomials | None:
        """Features of linear heads; None: the model is a network."""
        if self.degree is None:
            return None
        return Polynomials(self.observation_size + self.action_size, self.one_hot, self.degree)

    def write(self, folder: Path) -> None:
        """Write ``config.json`` in ``folder``."""
        write_record(folder / FILE, self)

    @classmethod
    def read(cls, folder: Path) -> "ModelConfig":
        """Read ``config.json`` in ``folder``.

        Raises:
            PipelineError: missing, of another format version, or not as declared. One line.
        """
        return read_record(folder / FILE, cls, "`dvc checkout` brings the last model back; training anew spends ε")
