"""Your own mechanism: a private mean of two numbers for each person (docs/privacy-proofs.md).

python -m examples.private_mean
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from primorl.privacy.accounting.figures import solve_noise_multiplier
from primorl.privacy.ledger.charges import pay_or_resume, read_spent_on_dataset
from primorl.privacy.ledger.checkpoint import State
from primorl.privacy.ledger.history import Budget, Request, Version
from primorl.privacy.ledger.ledger import Ledger
from primorl.privacy.mechanism.clipping import L2Clip
from primorl.privacy.mechanism.mechanism import Mechanism

BUDGET = Budget(epsilon=2.5, delta=1e-6)


@dataclass(frozen=True)
class RunningMean(State):
    """What one release leaves to the next: released numbers only."""

    total: Tensor
    started: int = 0
    done: int = 0
    finished: bool = False


def make_mechanism(people: int) -> Mechanism:
    """Eight rounds over a quarter of the people each, every person clipped to norm 1, for ε = 2 in
    all.
    """
    noise = solve_noise_multiplier(2.0, BUDGET.delta, sampling_probability=0.25, rounds=8)
    return Mechanism(people, "person", 0.25, L2Clip(1.0), noise, rounds=8, delta=BUDGET.delta)


def private_mean(
    mechanism: Mechanism, ids: list[str], read: Callable[[], Tensor], secret: bytes, folder: Path
) -> Tensor:
    """Pay, release, and write ``privacy.json`` in ``folder``; run again after a kill, it resumes at
    no cost.
    """
    digests = [hmac.digest(secret, name.encode(), "sha256") for name in sorted(ids)]
    members = b"".join(digest[:16] for digest in digests)
    data = Version(
        hmac.digest(secret, members, "sha256").hex(), mechanism.unit, mechanism.units, members
    )
    identity = repr(
        (
            data.fingerprint,
            mechanism.sampling_probability,
            mechanism.clip,
            mechanism.noise_multiplier,
            mechanism.rounds,
        )
    )
    request = Request(data, "people", "private_mean", identity, mechanism.event, mechanism.delta)
    url, begin = f"sqlite:///{folder}/ledger.db", RunningMean(torch.zeros(2))
    ledger = Ledger(url, secret=secret, anchor=folder / "ledger.head")
    with pay_or_resume(ledger, request, BUDGET, folder / "checkpoints", begin) as payment:
        state = payment.state
        while state.started < mechanism.rounds:
            state = replace(state, started=state.started + 1)
            # the round is spent from here on, before any private number is read
            payment.save(state)
            assert isinstance(mechanism.clip, L2Clip)
            clipped = mechanism.clip.finish(read()[mechanism.cohort()].double())
            released = mechanism.release(clipped.sum(0))
            state = replace(state, total=state.total + released, done=state.done + 1)
        payment.save(replace(state, finished=True))
        statement = mechanism.statement(
            dataset_fingerprint=data.fingerprint, public_assumptions=["the number of people"]
        )
        statement = statement.with_payment(
            payment.charge.id, read_spent_on_dataset(ledger, data, BUDGET.delta)
        )
        statement.write(folder)
        ledger.commit(payment.charge.id)
    return state.total / max(1, state.done)
