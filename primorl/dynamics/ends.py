"""Whether a model's learned ends are to be believed: a predicted end is a way out of all costs that would follow."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy

from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.termination import LEARNED, NONE

FEWEST, MARGIN = 20, 0.1


@dataclass(frozen=True)
class Evidence:
    """What the public split says of a learned termination.

    Attributes:
        terminations: how many public steps ended their episode.
        loss: mean cross-entropy of the members' mean probability there; NaN: nothing is public.
        constant: the same of the public rate of terminations.
    """

    terminations: int
    loss: float
    constant: float

    @property
    def supports(self) -> bool:
        """Whether there are `FEWEST` ends or more, and the head beats their rate by the share `MARGIN`."""
        return self.terminations >= FEWEST and self.loss <= (1 - MARGIN) * self.constant

    @property
    def why(self) -> str:
        """The figures, for a log."""
        return (
            f"{self.terminations} public terminations (needed {FEWEST}), cross-entropy {self.loss:.4g} against "
            f"{self.constant:.4g} of a constant rate (needed {1 - MARGIN:g} of it)"
        )


@torch.no_grad()
def evidence(ensemble: GaussianEnsemble, inputs: Tensor, terminated: Tensor) -> Evidence:
    """Judge the head of a model.

    Args:
        ensemble: with a learned termination, on the CPU.
        inputs: public observations and actions, ``[R, S + A]``.
        terminated: whether each step ended its episode, bool ``[R]``.
    """
    S = ensemble.architecture.observation_size
    _, _, ends = ensemble.predict(inputs[:, :S], inputs[:, S:])
    if ends is None:
        raise ValueError("this model learned no termination")
    flags = terminated.to(ends.dtype)
    rate = flags.mean().expand_as(flags)
    loss, constant = (float(binary_cross_entropy(p, flags)) for p in (ends.mean(0), rate))
    return Evidence(int(terminated.sum()), loss, constant)


def with_ends(ensemble: GaussianEnsemble, ends: str | None) -> GaussianEnsemble:
    """The model as a policy's rollouts used it.

    Args:
        ensemble: the released model.
        ends: as the policy's ``config.json`` says: ``none``, or None for how the model says.
    """
    return without_head(ensemble) if ends == NONE else ensemble


def without_head(ensemble: GaussianEnsemble) -> GaussianEnsemble:
    """The same model without its learned termination: its episodes never end by themselves."""
    if ensemble.termination != LEARNED:
        return ensemble
    *others, weight, bias = ensemble.weights
    return replace(
        ensemble,
        architecture=replace(ensemble.architecture, learned_termination=False),
        weights=(*others, weight[..., :-1], bias[..., :-1]),
        normaliser=replace(ensemble.normaliser, flag=False),
        termination=NONE,
    )
