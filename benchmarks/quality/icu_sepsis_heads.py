"""Networks that learn reward and end of a step from simulated sepsis patients, with and without privacy."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from benchmarks.quality.icu_sepsis_world import ACTIONS, PATIENTS, Data, Floats, World, data, greedy
from primorl.privacy.accounting.solving import solve_noise_multiplier
from primorl.simulators.icu_sepsis import DEATH, SURVIVAL

DELTA = 1e-5
CONTINUED = 0.78
"""Survival that a stay that goes on is taken to end with, where a learner knows rewards and ends alone."""
GAIN = 10.0  # of the logit of an end, as in `primorl.dynamics.ensemble`


class Heads:
    """A network of one hidden layer that says reward and end, and nothing of the next state: all its loss is on these.

    Args:
        inputs: of every state, standardised ``[S, d]``.
        rows: what is learned.
        seed: of the weights and the noise.
    """

    def __init__(self, inputs: Floats, rows: Data, seed: int, hidden: int = 64) -> None:
        visits = rows.table(np.ones(len(rows.states)))
        shares = visits.sum(0) / visits.sum()
        self.x = torch.tensor(inputs).float()
        self.a = torch.tensor((np.eye(ACTIONS) - shares) / np.sqrt(shares * (1 - shares))).float()
        self.weights = torch.tensor(visits).float() / PATIENTS
        reward = rows.table((rows.after == SURVIVAL) * 1.0) / np.maximum(visits, 1)
        self.ends = torch.tensor(rows.table((rows.after >= DEATH) * 1.0) / np.maximum(visits, 1)).float()
        self.mean = float((rows.after == SURVIVAL).mean())
        self.scale = (self.mean * (1 - self.mean)) ** 0.5
        self.reward = ((torch.tensor(reward) - self.mean) / self.scale).float()
        self.rows, self.generator = rows, torch.Generator().manual_seed(seed)
        width = self.x.shape[1]
        sizes = ((width, hidden), (ACTIONS, hidden), (hidden,), (hidden, 2), (2,))
        bounds = (width + ACTIONS, width + ACTIONS, width + ACTIONS, hidden, hidden)
        self.parameters = [
            (torch.rand(size, generator=self.generator) * 2 - 1) / bound**0.5
            for size, bound in zip(sizes, bounds, strict=True)
        ]
        self.parameters[3][:, 1] = 0.0
        self.parameters[4][1] = np.log(0.01 / 0.99) / GAIN

    def outputs(self, of_states: Tensor, of_actions: Tensor) -> Tensor:
        """Reward, standardised, and the output whose `GAIN`-fold is the logit of an end; both last."""
        _, _, bias, second, second_bias = self.parameters
        return silu(of_states + of_actions + bias) @ second + second_bias

    def all_outputs(self) -> Tensor:
        """Of every cell, ``[S, A, 2]``."""
        return self.outputs((self.x @ self.parameters[0])[:, None], self.a @ self.parameters[1])

    def loss(self, outputs: Tensor, reward: Tensor, ends: Tensor) -> Tensor:
        """Squared error and cross-entropy of every cell or row."""
        logit = GAIN * outputs[..., 1]
        return 0.5 * (outputs[..., 0] - reward) ** 2 + softplus(logit) - logit * ends

    def gradients(self) -> list[Tensor]:
        """Of the sum over a stay's rows, its mean over all stays."""
        self.follow()
        loss = (self.weights * self.loss(self.all_outputs(), self.reward, self.ends)).sum()
        return list(torch.autograd.grad(loss, self.parameters))

    def usual_norm(self, stays: int = 60) -> float:
        """The median norm of single stays' gradients."""
        norms = []
        for stay in range(stays):
            own = np.flatnonzero(self.rows.stay == stay)
            self.follow()
            s, a = torch.tensor(self.rows.states[own]), torch.tensor(self.rows.actions[own])
            after = torch.tensor(self.rows.after[own])
            reward, ends = ((after == SURVIVAL).float() - self.mean) / self.scale, (after >= DEATH).float()
            outputs = self.outputs(self.x[s] @ self.parameters[0], self.a[a] @ self.parameters[1])
            slopes = torch.autograd.grad(self.loss(outputs, reward, ends).sum(), self.parameters)
            norms.append(torch.cat([slope.flatten() for slope in slopes]).norm())
        return float(torch.stack(norms).median())

    def policy(self) -> Floats:
        """Greedy for reward and end, as if every stay that goes on ended with `CONTINUED`."""
        with torch.no_grad():
            outputs = self.all_outputs()
        ends = torch.sigmoid(GAIN * outputs[..., 1]).double().numpy()
        return greedy(outputs[..., 0].double().numpy() * self.scale + self.mean + (1 - ends) * CONTINUED)

    def follow(self) -> None:
        """Take gradients from here on."""
        self.parameters = [parameter.detach().requires_grad_(True) for parameter in self.parameters]


def by_adam(mdp: World, seed: int, steps: int) -> Floats:
    """NOT PRIVATE. Heads on centres, trained by Adam on all rows."""
    heads = Heads(mdp.standardised, data(seed), seed)
    heads.follow()
    adam = torch.optim.Adam(heads.parameters, lr=2e-3)
    for _ in range(steps):
        adam.zero_grad()
        (heads.weights * heads.loss(heads.all_outputs(), heads.reward, heads.ends)).sum().backward()
        adam.step()
    return heads.policy()


def by_rounds(inputs: Floats, seed: int, rounds: int, epsilon: float | None, rate: float) -> Floats:
    """Heads by rounds of one step of all stays with momentum 0.9, and the noise of the usual stay's norm as clip.

    Kinder than the pipeline: nobody is clipped, all join every round, all of the update is about reward and ends.
    """
    heads = Heads(inputs, data(seed), seed)
    clip = rate * heads.usual_norm()
    noise = 0.0 if epsilon is None else clip * solve_noise_multiplier(epsilon, DELTA, 1.0, rounds) / PATIENTS
    moving = [torch.zeros_like(parameter) for parameter in heads.parameters]
    for _ in range(rounds):
        slopes = heads.gradients()
        for moved, slope in zip(moving, slopes, strict=True):
            moved.mul_(0.9).sub_(rate * slope).add_(noise * torch.randn(slope.shape, generator=heads.generator))
        heads.parameters = [p.detach() + moved for p, moved in zip(heads.parameters, moving, strict=True)]
    return heads.policy()
