"""Train all (unit, member) pairs of a chunk at once: the kernel of the private engine.

PriMORL, Algorithm 2, lines for one unit k: from the released weights θ, gradient steps on the
unit's own batches, each followed by ensemble clipping of θ_k - θ. Pairs are the batch dimension of
batched matrix products. The result of one pair does not depend on the other pairs, their number, or
its place among them, to the last bit (docs/privacy-proofs.md, `primorl.engine.rounds.check_setup`).

Three choices make it fast. The backward pass is written by hand, so no graph is built. A layer's
bias is the last row of its matrix, so one in-place product updates both. The kernel stores the
update θ_k - θ, so clipping need not subtract.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from primorl.engine.settings import LocalTraining
from primorl.model.architecture import TERMINATION_GAIN, CloneNetwork, Network
from primorl.model.ensemble import Normaliser, Weights
from primorl.model.numerics import Workspace, relu_backward
from primorl.privacy.mechanism.clipping import EnsembleClip
from primorl.privacy.mechanism.sampling import Entropy, uniforms

LEAST_COUNT = 0.25
"""What a unit counts for at least, however few rows it has: the fewer count, the more noise."""
_CPU = torch.device("cpu")
_silu_into, _relu_into = torch.ops.aten.silu.out, torch.ops.aten.relu.out
_silu_backward_into = torch.ops.aten.silu_backward.grad_input
_sigmoid_backward_into = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward_into = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class LocalBatches:
    """The batches of U units, in the order in which each unit takes them.

    Sensitive: discard right after use.

    Attributes:
        inputs: standardised, ``[J, U, B, inputs]``, J local steps.
        targets: standardised, ``[J, U, B, columns]``.
        weights: ``[J, U, B]``, 1/(rows of the batch) on a unit's rows and 0 on padding, so that a
            step is a mean over the unit's own rows and a batch of padding alone moves nothing.
        counts: ``[U]``, in (0, 1]: by which a unit's clipped update is multiplied; None: by 1.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    counts: Tensor | None = None

    def standardise(self, normaliser: Normaliser) -> "LocalBatches":
        """Standardise what `read_batches` gave."""
        return replace(
            self, inputs=normaliser.inputs(self.inputs), targets=normaliser.targets(self.targets)
        )


def add_idle_units(batches: LocalBatches, units: int) -> LocalBatches:
    """Fill batches up to so many units with units that have no rows."""
    more = units - batches.weights.shape[1]
    if more <= 0:
        return batches
    parts = (batches.inputs, batches.targets, batches.weights)
    inputs, targets, weights = (
        torch.cat((v, v.new_zeros(len(v), more, *v.shape[2:])), dim=1) for v in parts
    )
    counts = None if batches.counts is None else pad(batches.counts, (0, more), value=1.0)
    return LocalBatches(inputs, targets, weights, counts)


def takes_one_product(shape: Network, local: LocalTraining) -> bool:
    """Tell whether units take one step from the same weights, of linear heads: see
    `Kernel._step_of_heads`.
    """
    one_network = shape.members == 1 and not shape.hidden and not shape.spread
    return one_network and local.one_batch and local.weight_decay == 0


class Kernel:
    """Trains the units of one chunk after another, in memory that is used again.

    Args:
        shape: sizes of the network.
        local: the local steps.
        clip: applied after every step.
        device: where the weights are.
    """

    def __init__(
        self, shape: Network, local: LocalTraining, clip: EnsembleClip, device: torch.device = _CPU
    ) -> None:
        self.shape, self.local, self.clip, self.device = shape, local, clip, device
        self.one_product = takes_one_product(shape, local)
        self.workspace = Workspace(device)

    @torch.inference_mode()
    def sum(self, start: Weights, batches: LocalBatches, grid: float = 0.0) -> list[Tensor]:
        """Return Σ_k Δ_k over the units of ``batches``, each joint update of norm at most the
        clip's.

        With a ``grid``, every number of an update is cut to a multiple of it, towards zero, so no
        norm grows. Sums of such multiples are exact, whatever their order: a power of two, and few
        enough units (`Mechanism.grid`), provided.

        Args:
            start: the released weights every unit starts from.
            batches: the units' own transitions.
            grid: see above; 0: updates are summed as they are.

        Returns:
            float64 tensors shaped like ``start``; zero where U = 0. Sensitive: only
            `Mechanism.release` may see them.
        """
        totals = []
        for i, update in enumerate(self._train_chunk(start, batches)):
            if grid:
                update.mul_(1 / grid).trunc_()
            exact = self.workspace.take("exact", i, tuple(update.shape), torch.float64)
            by_unit = exact.copy_(update).view(-1, self.shape.members, *update.shape[1:])
            totals.append(by_unit.sum(0).mul_(grid or 1.0))
        return _as_weights(totals)

    @torch.inference_mode()
    def updates(self, start: Weights, batches: LocalBatches) -> list[Tensor]:
        """Return Δ_k of every unit, ``[U, N, in, out]`` and ``[U, N, 1, out]``: the terms of `sum`.

        Sensitive.
        """
        units = batches.weights.shape[1]
        found = self._train_chunk(start, batches)
        return _as_weights(
            [update.view(-1, self.shape.members, *update.shape[1:])[:units] for update in found]
        )

    def _train_chunk(self, start: Weights, batches: LocalBatches) -> list[Tensor]:
        """Return Δ of every (unit, member) pair, one ``[U·N, in + 1, out]`` a layer."""
        if batches.weights.shape[1] == 1:
            batches = add_idle_units(batches, 2)  # products of one matrix take another way
        shape, workspace = self.shape, self.workspace
        steps, units, rows = batches.weights.shape
        pairs = units * shape.members
        if steps == 0 or units == 0:
            return [
                w.new_zeros(pairs, i + 1, o)
                for w, (i, o) in zip(start[::2], shape.layers, strict=True)
            ]
        if self.one_product:
            return self._finish([self._step_of_heads(start, batches)], batches)
        widest = max(outputs for _, outputs in shape.layers)
        workspace.apart("error", 0, pairs, rows, widest)  # large enough for every layer
        workspace.take("carried", 0, (pairs, rows, widest))
        parameters = zip(start[::2], start[1::2], strict=True)
        layers = [
            _Layer(weight, bias, units, rows, workspace, i)
            for i, (weight, bias) in enumerate(parameters)
        ]
        signals = [
            workspace.take("signal", i, (pairs, rows, size + 1))
            for i, size in enumerate(shape.hidden)
        ]
        # Padding is zero, and so is the column that the row of biases is multiplied with: whatever
        # the weights are, the output and the gradient of such a row are zeros, and a unit's update
        # stays what it is.
        padding = batches.weights.unsqueeze(-1) == 0
        x = _per_pair(
            pad(batches.inputs, (0, 1), value=1.0).masked_fill_(padding, 0.0), shape.members
        )
        y = _per_pair(batches.targets.masked_fill(padding, 0.0), shape.members)
        weight = _per_pair(batches.weights.unsqueeze(-1), shape.members)
        idle = batches.weights.amax(dim=2, keepdim=True) == 0
        gradient = _LossGradient(shape, self.local.beta_nll, pairs, rows, workspace)
        ragged = padding.flatten(1).any(1).tolist()
        for j, (x_j, y_j, weight_j) in enumerate(
            zip(x.unbind(), y.unbind(), weight.unbind(), strict=True)
        ):
            if j == 0 or ragged[j] or ragged[j - 1]:
                for signal in signals:
                    signal[..., -1] = x_j[..., -1]
            self._descend(layers, [x_j, *signals], y_j, weight_j, gradient)
            _clip(layers, idle[j], self.clip)
        return self._finish([layer.moved for layer in layers], batches)

    def _finish(self, moved: list[Tensor], batches: LocalBatches) -> list[Tensor]:
        """Hold the joint updates of units to the clip; then units of few rows count for less, and
        no product with at most 1 grows by rounding.
        """
        held = self.clip.finish(moved)
        if batches.counts is None:
            return held
        for update in held:
            by_unit = update.view(len(batches.counts), self.shape.members, -1)
            by_unit.mul_(batches.counts[:, None, None])
        return held

    def _step_of_heads(self, start: Weights, batches: LocalBatches) -> Tensor:
        """Take one gradient step of linear heads: -η Φᵀ(∂loss/∂output) of the mean over a unit's
        rows, ``[U, F + 1, out]``.

        Every unit begins with the same weights, so none are copied. Φ is read as `Polynomials` lays
        it out. Rows of padding have weight zero.
        """
        weight, bias = start
        units, rows, inputs = batches.inputs.shape[1:]
        # [U, F, B], its rows far apart. Strides are made anew: of batches of one row they vary with
        # the number of idle units, and with them the product's last bits.
        features = (
            batches.inputs[0].movedim(-1, 0).flatten().view(inputs, units, rows).movedim(0, 1)
        )
        outputs, rate = weight.shape[-1], self.local.learning_rate
        output = self.workspace.take("above", 0, (units, outputs, rows))
        torch.baddbmm(
            bias.mT.expand(units, -1, -1), weight.mT.expand(units, -1, -1), features, out=output
        )
        error = self.workspace.take("error", 0, (units, outputs, rows))
        gradient = _LossGradient(self.shape, 0.0, units, rows, self.workspace)
        gradient(output.mT, batches.targets[0], error.mT).mul_(batches.weights[0].unsqueeze(-1))
        moved = self.workspace.take("moved", 0, (units, inputs + 1, outputs))
        # Into memory of its own: into rows with gaps, torch calls one product after the other.
        product = self.workspace.take("product", 0, (units, inputs, outputs))
        torch.mul(torch.bmm(features, error.mT, out=product), -rate, out=moved[:, :-1])
        moved[:, -1] = error.sum(-1).mul_(-rate)
        return moved

    def _descend(
        self,
        layers: "list[_Layer]",
        signals: list[Tensor],
        y: Tensor,
        weight: Tensor,
        gradient: "_LossGradient",
    ) -> None:
        """Take one gradient step of every pair, in place: forward, loss gradient, backward, update.

        Between layers stands Swish, or ReLU in a policy. Only how far a layer has moved is updated:
        `_clip` follows, which says where it is.
        """
        rectified = isinstance(self.shape, CloneNetwork)
        rate, decay = self.local.learning_rate, self.local.weight_decay
        for layer, below, signal in zip(layers, signals, signals[1:], strict=False):
            (_relu_into if rectified else _silu_into)(layer.forward(below), out=signal[..., :-1])
        gradient(layers[-1].forward(signals[-1]), y, layers[-1].error).mul_(weight)

        moving = weight.amax(dim=1, keepdim=True) > 0 if decay else None
        for i in reversed(range(len(layers))):
            layer = layers[i]
            layer.moved.baddbmm_(signals[i].mT, layer.error, alpha=-rate)
            if moving is not None:
                layer.moved.addcmul_(layer.now, moving, value=-rate * decay)
            if i:
                lower, carried = layers[i - 1], layer.carry(layer.error)
                if rectified:
                    relu_backward(carried, lower.above, 0, grad_input=lower.error)
                else:
                    _silu_backward_into(carried, lower.above, grad_input=lower.error)


class _Layer:
    """One layer of all pairs: where it starts, how far it has moved, and where it is; its signal
    and its error.

    Attributes:
        origin: ``[N, in + 1, out]``; the last row is the bias.
        moved: ``[U·N, in + 1, out]``, the update so far.
        now: their sum.
        above: the layer's output, ``[U·N, B, out]``.
        error: the loss gradient at that output; of the same shape, a gap behind each pair.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor,
        units: int,
        rows: int,
        workspace: Workspace,
        number: int,
    ) -> None:
        self.origin = torch.cat((weight, bias), dim=1)
        members, inputs, outputs = self.origin.shape
        pairs = units * members
        self.now = workspace.take("now", number, (pairs, inputs, outputs))
        self.now.view(units, members, inputs, outputs).copy_(self.origin)
        self.moved = workspace.take("moved", number, (pairs, inputs, outputs)).zero_()
        self.above = workspace.take("above", number, (pairs, rows, outputs))
        self.error = workspace.apart("error", 0, pairs, rows, outputs)
        self._carried = workspace.take("carried", 0, (pairs, rows, inputs - 1))
        self._by_unit = [t.view(units, *self.origin.shape) for t in (self.moved, self.now)]
        self._rows = self.moved.view(units, len(self.origin), -1)
        self._matrix_turned = self.now[:, :-1].mT

    def forward(self, signal: Tensor) -> Tensor:
        """Return the output for ``signal [U·N, B, in + 1]``; its last column is 1 on a unit's own
        rows.
        """
        return torch.bmm(signal, self.now, out=self.above)

    def carry(self, error: Tensor) -> Tensor:
        """Return ``error`` at the output, ``[U·N, B, out]``, as it arrives at the input: ``[U·N,
        B, in]``.
        """
        return torch.bmm(error, self._matrix_turned, out=self._carried)

    def norms(self) -> Tensor:
        """Return the norms of the update, ``[U, N]``, in float32."""
        norms: Tensor = torch.linalg.vector_norm(self._rows, dim=2)
        return norms

    def scale(self, factors: Tensor) -> None:
        """Multiply the update by ``factors [U, N]``."""
        moved, now = self._by_unit
        torch.add(self.origin, moved.mul_(factors[..., None, None]), out=now)


def _as_weights(layers: list[Tensor]) -> list[Tensor]:
    """Split ``[.., in + 1, out]`` a layer into ``[.., in, out]`` and ``[.., 1, out]``, as `Weights`
    has them.
    """
    return [part for layer in layers for part in (layer[..., :-1, :], layer[..., -1:, :])]


def _per_pair(per_unit: Tensor, members: int) -> Tensor:
    """Repeat ``[J, U, B, D]`` → ``[J, U·N, B, D]``: all members of a unit see the same rows."""
    return per_unit.unsqueeze(2).expand(-1, -1, members, -1, -1).flatten(1, 2)


class _LossGradient:
    """∂/∂output of every row's loss (`losses_of_rows`), ``[P, B, outputs]``.

    With v = bound_softly(raw): ∂/∂mean = (mean - y)e^(-v), ∂/∂v = (1 - (mean - y)²e^(-v))/2; of the
    cross-entropy of a flag f, with logit = g·output, ∂/∂output = g (sigmoid(logit) - f).

    With p = 1/(e^-high + e^-raw) = e^high sigmoid(raw - high), v is log(e^low + p): a sigmoid is
    all that e^-v = 1/(e^low + p) and ∂v/∂raw = p e^-v sigmoid(high - raw) need. With β of the β-NLL
    loss, both gradients of the Gaussian are multiplied by e^(βv).

    A policy's mean is tanh(output), with the factor 1 - mean² in its gradient; of discrete actions
    the gradient is softmax(output) - one-hot action. Linear heads (`primorl.engine.setup`) have
    ∂/∂output = output - y, of the flag too.
    """

    def __init__(
        self, shape: Network, beta_nll: float, pairs: int, rows: int, workspace: Workspace
    ) -> None:
        self._shape, self._flag = shape, shape.columns > shape.targets
        self._squashed = isinstance(shape, CloneNetwork)
        self._discrete = isinstance(shape, CloneNetwork) and shape.discrete_actions
        self._beta = 0.0 if self._squashed else beta_nll
        if shape.spread or self._discrete:
            parts = [workspace.apart("loss", i, pairs, rows, shape.targets) for i in range(4)]
            self._share, self._precision, self._miss, self._mean = parts
        if self._flag and shape.spread:
            self._probability = workspace.apart("flag", 0, pairs, rows, 1)

    def __call__(self, output: Tensor, y: Tensor, gradient: Tensor) -> Tensor:
        """Write it into ``gradient``."""
        if self._discrete:
            largest = output.amax(dim=-1, keepdim=True)
            exponential = torch.sub(output, largest, out=self._share).exp_()
            total = exponential.sum(dim=-1, keepdim=True)
            return torch.div(exponential, total, out=gradient).sub_(y)
        size, high = self._shape.targets, self._shape.log_variance_high
        mean, raw = output[..., :size], output[..., size : 2 * size]
        if not self._shape.spread:
            return torch.sub(output, y, out=gradient)
        if self._squashed:
            mean = self._mean.copy_(mean).tanh_()
        share = torch.sub(raw, high, out=self._share).sigmoid_()
        precision = torch.mul(share, math.exp(high), out=self._precision)
        precision.add_(math.exp(self._shape.log_variance_low)).reciprocal_()
        miss = torch.sub(mean, y[..., :size], out=self._miss)
        scaled = torch.mul(miss, precision, out=gradient[..., :size])
        spread = miss.mul_(scaled).sub_(1).mul_(precision)
        if self._squashed:
            _tanh_backward_into(scaled, mean, grad_input=scaled)
        _sigmoid_backward_into(spread, share, grad_input=spread)
        torch.mul(spread, -0.5 * math.exp(high), out=gradient[..., size : 2 * size])
        if self._beta > 0:
            variance = precision.pow_(-self._beta)
            scaled.mul_(variance)
            gradient[..., size : 2 * size].mul_(variance)
        if self._flag:
            logit = torch.mul(output[..., -1:], TERMINATION_GAIN, out=self._probability)
            probability = logit.sigmoid_()
            torch.mul(probability.sub_(y[..., -1:]), TERMINATION_GAIN, out=gradient[..., -1:])
        return gradient


def _clip(layers: list[_Layer], idle: Tensor, clip: EnsembleClip) -> None:
    """Scale every pair's update to the bound and put the weights where it ends.

    float32 throughout: `EnsembleClip.finish` guarantees the sensitivity of an update, after the
    last step.

    Units that are ``idle``, without rows of their own in this step (``[U, 1]``), are left alone to
    the last bit. How many steps of padding a unit sees depends on its neighbours in the chunk: were
    it clipped again, rounding would carry their presence into its update.
    """
    squares = torch.stack([layer.norms() for layer in layers], dim=-1).square_()
    factors = clip.factors(squares.flatten(0, 1)).view_as(squares)
    factors = factors.masked_fill(idle.unsqueeze(-1), 1.0)
    for layer, own in zip(layers, factors.unbind(-1), strict=True):
        layer.scale(own)


class CohortSource(Protocol):
    """Where training gets transitions from: it names units and steps, the source hands out
    tensors.
    """

    @property
    def units(self) -> int:
        """Number of units, K."""

    def lengths(self, units: Tensor) -> Tensor:
        """Return the transitions of each unit: int64 ``[U]`` for int64 ``[U]``."""

    def transitions(self, units: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows ``steps[u, m]`` of unit ``units[u]``: ``[U, M, S + A]`` and ``[U, M, S +
        1]``.
        """


@runtime_checkable
class TrajectorySource(CohortSource, Protocol):
    """A source that knows where trajectories begin."""

    def begins(self, units: Tensor, steps: Tensor) -> Tensor:
        """Tell whether these rows are the first of a trajectory: bool ``[U, M]``."""


def read_batches(
    source: CohortSource,
    units: Tensor,
    local: LocalTraining,
    entropy: Entropy,
    device: torch.device = _CPU,
    rows: int | None = None,
) -> LocalBatches:
    """Shuffle every unit's transitions, anew for each epoch, and cut them into its local batches,
    not standardised.

    A unit that takes one step on all of its rows keeps their order, which would change nothing but
    last bits. The orders (and, with ``max_transitions_per_unit``, the uniform subset used in this
    round) are secret and independent across units. Drawn from a seed, they would depend on the rest
    of the cohort, and an adversary who knows the seed would see one person's absence move all
    updates.

    Args:
        source: the private units.
        units: indices, ``[U]``.
        local: size of a batch, epochs, most transitions of a unit.
        entropy: where the orders come from.
        device: where the batches go.
        rows: of a batch in place of ``local.batch_size``, for units of at most so many.
    """
    batch_size, epochs = rows or local.batch_size, local.local_epochs
    max_transitions = local.max_transitions_per_unit
    lengths, counts = source.lengths(units), None
    if local.full_rows is not None:
        counts = (lengths / local.full_rows).clamp(LEAST_COUNT, 1.0).to(device)
    most = int(lengths.max()) if len(units) else 0
    order = _first_order(lengths, most, local, entropy)
    if max_transitions is not None and max_transitions < most:
        order, most = order[:, :max_transitions], max_transitions
        lengths = lengths.clamp(max=max_transitions)
    orders = [order]
    orders += [order.gather(1, _shuffle(lengths, most, entropy)) for _ in range(epochs - 1)]

    batches = math.ceil(most / batch_size)
    if padding := batches * batch_size - most:
        orders = [torch.nn.functional.pad(each, (0, padding)) for each in orders]
    steps = torch.cat(orders, dim=1) if epochs > 1 else orders[0]
    inputs, targets = source.transitions(units, steps)
    own = torch.arange(batches * batch_size, device=lengths.device) < lengths.unsqueeze(1)
    inputs, targets, own = (part.to(device) for part in (inputs, targets, own))
    # Padding must be finite: weight 0 times an overflow would be NaN, and how much padding a unit
    # gets depends on its neighbours in the chunk, so one unit's length could zero another's update.
    if not own.all():
        padded = ~own.repeat(1, epochs).unsqueeze(-1)
        inputs, targets = inputs.masked_fill(padded, 0.0), targets.masked_fill(padded, 0.0)
    own = own.view(len(units), 1, batches, batch_size).float()
    weights = own / own.sum(-1, keepdim=True).clamp(min=1)
    weights = weights.expand(-1, epochs, -1, -1).flatten(1, 2)
    by_step = (len(units), epochs * batches, batch_size)
    inputs, targets = (  # [U, J·B, D] → [J, U, B, D]
        rows.view(*by_step, rows.shape[-1]).transpose(0, 1) for rows in (inputs, targets)
    )
    return LocalBatches(inputs, targets, weights.transpose(0, 1).contiguous(), counts)


def _first_order(lengths: Tensor, most: int, local: LocalTraining, entropy: Entropy) -> Tensor:
    """Return the order of the first epoch, ``[U, most]``: secret, but for units that take one step
    on all of their rows.

    Each unit's own length decides: another order has other last bits, and they must not tell who
    shares the chunk.
    """
    bound = local.max_transitions_per_unit
    if not local.one_batch or bound is None:
        return _shuffle(lengths, most, entropy)
    place = torch.arange(most, device=lengths.device)
    as_they_come = place.expand(len(lengths), -1)
    if (lengths < most).any():
        as_they_come = as_they_come.where(place < lengths.unsqueeze(1), 0)
    if most <= bound:
        return as_they_come
    return as_they_come.where(lengths.unsqueeze(1) <= bound, _shuffle(lengths, most, entropy))


def _shuffle(lengths: Tensor, most: int, entropy: Entropy) -> Tensor:
    """Draw a uniform order of each unit's first ``lengths[u]`` steps, ``[U, most]``; padding
    follows.

    Padding points at step 0, a row of the unit's own.
    """
    keys = uniforms(entropy, (len(lengths), most)).to(lengths.device)
    padding = torch.arange(most, device=lengths.device) >= lengths.unsqueeze(1)
    # On one core numpy sorts several times as fast as torch.
    order = torch.from_numpy(np.argsort(keys.masked_fill_(padding, 2.0).numpy(), axis=1))
    return order.masked_fill_(padding, 0)
