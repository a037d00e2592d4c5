"""A tape of releases: one run records them, a run on neighbouring data gets the same ones, and
nothing else may differ.

The method is Re:cord-play (Cebere et al. 2026, "Privacy in theory, bugs in practice", arXiv
2602.17454).
"""

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mlflow.store.tracking import sqlalchemy_store
from torch import Tensor

from primorl.data.identity.membership import Fingerprint
from primorl.engine import local_update
from primorl.online.learning import SimulatedUsers, Trajectories
from primorl.privacy.ledger import ledger
from primorl.privacy.mechanism import mechanism
from primorl.privacy.mechanism.mechanism import ONE, GaussianQuery, Mechanism
from primorl.privacy.mechanism.sampling import SystemEntropy, poisson_sample
from primorl.work.data import Partitions
from tests.mechanisms import SeededEntropy

FINGERPRINT = "fingerprint"
_NOW = time.time()
_DAY = "2026-01-01T00:00:00+00:00"
_KEYS = torch.from_numpy(np.random.default_rng(0).random(1 << 12))
_ROUNDING = 1e-6  # of a bound
_VISITOR, _STEPS = 1, 5  # the online user who differs, and how long she stays in the second run


@dataclass(frozen=True)
class Release:
    """A released value.

    Attributes:
        mechanism: the stage, the kind of the release and the settings of its mechanism.
        exact: the sum before the noise, as one vector; sensitive.
        value: what was released.
        moved: distance of ``exact`` from that of the first run, in sensitivities.
    """

    mechanism: tuple[str, str, str]
    exact: Tensor
    value: Any
    moved: float = 0.0


@dataclass
class Tape:
    """The releases of one run.

    Attributes:
        first: those of the first run, which this run gets as well; None: this is the first run.
        releases: of this run, in their order.
        faults: releases that are not those of the first run, or moved by more than the sensitivity.
        stage: which is running.
        secret: size of the last cohort, or the steps of the online user who differs; sensitive.
    """

    first: list[Release] | None = None
    releases: list[Release] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    stage: str = ""
    secret: int = 0

    def release(
        self, kind: str, settings: str, exact: Tensor, sensitivity: float, draw: Callable[[], Any]
    ) -> Any:
        """Draw a release and record it, or return the first run's.

        Args:
            kind: of the release.
            settings: of the mechanism.
            exact: the sum before the noise.
            sensitivity: L2 sensitivity of ``exact`` where one unit is replaced by another.
            draw: make the release.
        """
        exact, number = exact.detach().double().flatten().cpu().clone(), len(self.releases)
        mechanism = self.stage, kind, settings
        if self.first is None:
            self.releases.append(Release(mechanism, exact, draw()))
            return self.releases[-1].value
        place = f"release {number}, {kind} of {self.stage}"
        if number >= len(self.first) or self.first[number].mechanism != mechanism:
            self.faults.append(f"{place}: the first run has none")
            raise AssertionError(self.faults[-1])
        known = self.first[number]
        moved = (
            float((known.exact - exact).norm()) / sensitivity
            if known.exact.shape == exact.shape
            else float("inf")
        )
        if moved > 1 + _ROUNDING:
            self.faults.append(f"{place}: moved by {moved:.3g} times its sensitivity")
        self.releases.append(Release(mechanism, exact, known.value, moved))
        return known.value


@contextmanager
def playing(tape: Tape) -> Iterator[None]:
    """Give a run the clock, the names, the public randomness and the coins of every other run, and
    its tape's releases.

    A second run differs in what is secret and not in the data files as well: the coin of the last
    private unit is the other one in every second cohort, and one online user stays for a few steps
    only.
    """
    with pytest.MonkeyPatch.context() as patched:
        _play_releases(tape, patched)
        _play_coins(tape, patched)
        _play_users(tape, patched)
        _play_surroundings(patched)
        yield


def _play_releases(tape: Tape, patched: pytest.MonkeyPatch) -> None:
    """Let every door of the mechanism, and the fingerprint of the rows, ask the tape."""
    doors = Mechanism.release, Mechanism.answer, Fingerprint.keyed_digest

    def rounds(mechanism: Mechanism, total: Any) -> Any:
        sensitivity, draw = 2 * mechanism.clip.sensitivity, partial(doors[0], mechanism, total)
        return tape.release("round", repr(mechanism), total.flatten(), sensitivity, draw)

    def answer(mechanism: Mechanism, query: GaussianQuery, total: Tensor) -> Any:
        exact, draw = total.double() / ONE, partial(doors[1], mechanism, query, total)
        return tape.release("query", repr((mechanism, query)), exact, 2 * query.sensitivity, draw)

    def fingerprint(rows: Fingerprint, secret: bytes) -> Any:
        return tape.release(FINGERPRINT, "", torch.zeros(0), 1.0, partial(doors[2], rows, secret))

    patched.setattr(Mechanism, "release", rounds)
    patched.setattr(Mechanism, "answer", answer)
    patched.setattr(Fingerprint, "keyed_digest", fingerprint)


def _play_coins(tape: Tape, patched: pytest.MonkeyPatch) -> None:
    """Draw cohorts and orders from the same coins in every run, but for those of the last unit."""
    cohorts, fill = count(1), SeededEntropy(0).fill

    def cohort(entropy: Any, units: int, sampling_probability: float) -> Tensor:
        number = next(cohorts)
        drawn = poisson_sample(SeededEntropy(number), units, sampling_probability)
        if tape.first is not None and number % 2 and sampling_probability < 1:
            last = torch.tensor([units - 1])
            drawn = drawn[drawn != last] if last in drawn else torch.cat((drawn, last))
        tape.secret = len(drawn)
        return drawn

    patched.setattr(mechanism, "poisson_sample", cohort)
    patched.setattr(SystemEntropy, "fill", lambda entropy, buffer: fill(buffer))
    # Each unit has coins of its own, whoever is in its chunk: here the same ones for every unit.
    patched.setattr(
        local_update, "uniforms", lambda entropy, shape: _KEYS[: shape[1]].expand(shape).clone()
    )


def _play_users(tape: Tape, patched: pytest.MonkeyPatch) -> None:
    """Let one online user of a second run leave early."""
    meet = SimulatedUsers.meet

    def users(environment: SimulatedUsers, numbers: Any, *policy: Any) -> Trajectories:
        met = meet(environment, numbers, *policy)
        if _VISITOR in numbers:
            place = list(numbers).index(_VISITOR)
            if tape.first is not None:
                for tensor in vars(met).values():
                    tensor[place, _STEPS:] = 0
                met.ends[place, _STEPS - 1] = True
            tape.secret = int(met.valid[place].sum())
        return met

    patched.setattr(SimulatedUsers, "meet", users)


def _play_surroundings(patched: pytest.MonkeyPatch) -> None:
    """Hold still the clock, names, seeds of public randomness, and what identifies the people."""
    names, draw = count(1), np.random.default_rng
    identity: Any = Partitions.identity
    patched.setattr(np.random, "default_rng", lambda seed=0: draw(seed))
    # Keyed digests of the people, as the fingerprint is of the rows.
    patched.setattr(
        Partitions, "identity", property(lambda data: identity.fget(data) | {"members": ""})
    )
    patched.setattr(
        sqlalchemy_store, "uuid", SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(names)))
    )
    patched.setattr(
        ledger, "secrets", SimpleNamespace(token_hex=lambda size: f"{next(names):0{2 * size}x}")
    )
    for clock in ("time.time", "time.monotonic", "time.perf_counter", "tqdm.std.time"):
        patched.setattr(clock, lambda: _NOW)
    patched.setattr(ledger, "_now", lambda: _DAY)
    patched.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=2**40))
