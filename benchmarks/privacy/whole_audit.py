"""Audit one run of the whole pipeline, from a CSV to the bundle: ``python -m
benchmarks.privacy.whole_audit``.

Of m candidates a random half is in the log. All stages run once on it, in this process. The
attacker knows the rows of all candidates and sees every release of every charged mechanism: rounds
and queries of model and clone, and the answer to the question about today's returns. By public code
it computes each candidate's contribution to each release, and scores the candidate by the sum of
its log-likelihood ratios. The bounds are those of `benchmarks.privacy.bounds`.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, chdir, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

from benchmarks.machine import ROOT, keep, put, read, row
from benchmarks.privacy.bounds import Booleans, Floats, LowerBounds, lower_bounds
from pipeline.runner import run_stage
from primorl.base.files import BEHAVIOUR, MODEL, PARAMS, PRIVATE, PRIVATE_EVALUATION
from primorl.commands.main import app
from primorl.data.storage.rows import UnitStore
from primorl.engine import heads, queries
from primorl.engine.local_update import read_batches
from primorl.engine.rounds import Rounds
from primorl.engine.setup import CloningSource
from primorl.evaluate.private.behaviour import Behaviour
from primorl.evaluate.private.problem import Episodes
from primorl.model.ensemble import GaussianEnsemble
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.epsilon import gaussian_mean
from primorl.privacy.mechanism import mechanism as mechanisms
from primorl.privacy.mechanism.clipping import EnsembleClip, L2Clip
from primorl.privacy.mechanism.mechanism import ONE, BoundedSum, Fractions, GaussianQuery, Mechanism
from primorl.privacy.mechanism.sampling import discrete_gaussian
from primorl.privacy.statement import Statement

DELTA = 1e-5
COMMAND = "python -m benchmarks.privacy.whole_audit"
CANDIDATES = {3.0: 6_000, 1.0: 20_000, 0.5: 40_000}
OBSERVED, ACTIONS = 12, 6
SHARES = {"model": 0.68, "clone": 0.2, "behaviour": 0.1}
QUERY_SHARE = 0.007  # of the model's part, for each query
MOST_SHRUNK = 600  # numbers of a release; of more, none is taken for noisier than another
ARTEFACTS = {"model": "train_model", "clone": "clone_behaviour", "answers": "evaluate_private"}
ATTACKERS = ("together", *ARTEFACTS, "model file", "policy file", "random")
RELEASES = "repeated releases with a bound above it"
WHOLE = 3.0  # the claim of whole runs
AS_STATED, HALF, UNCLIPPED = "", ", half the noise", ", no clip"
DATA = ("collect", "ingest", "partition")
PAID = (
    "train_model",
    "clone_behaviour",
    "optimize_policy",
    "evaluate_private",
    "evaluate",
)
Rows = Callable[[UnitStore], Tensor]


@dataclass(frozen=True)
class Release:
    """A release: the stage, what it is, the noisy sum ``[n]``, its noise, and candidates'
    contributions ``[m, n]``.
    """

    stage: str
    what: str
    noisy: Tensor
    deviation: float
    contributions: Rows


class Tap:
    """Records all releases of the mechanisms, and how a contribution to each follows from earlier
    releases.
    """

    def __init__(self) -> None:
        self.stage, self.seen = "", list[Release]()
        self._rows: Rows = lambda store: torch.empty(0)
        self._asked = deque[Rows]()  # sums of queries that are not answered yet

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Watch the mechanisms of this process."""
        release, answer, rounds, asked = (
            Mechanism.release,
            Mechanism.answer,
            Rounds.sum,
            Behaviour.contributions,
        )

        def released(mechanism: Mechanism, total: Any) -> Any:
            made = release(mechanism, total)
            noisy = made.double().flatten() * mechanism.divisor
            deviation = mechanism.noise_multiplier * mechanism.clip.sensitivity
            self._add("release", noisy, deviation, self._rows)
            return made

        def answered(mechanism: Mechanism, query: GaussianQuery, total: Tensor) -> Tensor:
            made = answer(mechanism, query, total)
            noisy = made.flatten() * mechanism.units
            self._add(query.what, noisy, query.standard_deviation, self._asked.popleft())
            return made

        def summed(own: Rounds, weights: Any) -> Any:
            setup, maps = own._setup, own._normaliser
            self._rows = lambda store: _updates(setup, maps, setup.shape(weights), store)
            return rounds(own, weights)

        def contributed(own: Behaviour, problem: Any, episodes: Any, *before: Any) -> Tensor:
            self._rows = lambda store: _returns(own, problem, store, before)
            return asked(own, problem, episodes, *before)

        def asking(total: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def asked_for(query: Any, source: Any, *seen: Any) -> Tensor:
                mine = partial(total, query)
                self._asked.append(lambda store: _queried(mine, source, store, seen))
                return mine(source, *seen)

            return asked_for

        asked_kinds = (
            queries.ScalesQuery,
            queries.ResidualQuery,
            queries.ExplainedQuery,
            queries.FirstStatesQuery,
            queries.LengthsQuery,
        )
        watched: list[tuple[type, str, Callable[..., Any]]] = [
            (kind, "total", asking(kind.total)) for kind in asked_kinds
        ]
        watched += [(Mechanism, "release", released), (Mechanism, "answer", answered)]
        watched += [(Rounds, "sum", summed), (Behaviour, "contributions", contributed)]
        with ExitStack() as patches:
            for kind, name, ours in watched:
                patches.enter_context(mock.patch.object(kind, name, ours))
            yield

    def _add(self, what: str, noisy: Tensor, deviation: float, rows: Rows) -> None:
        self.seen.append(Release(self.stage, what, noisy, deviation, rows))


def _queried(
    total: Callable[..., Tensor], source: Any, store: Any, seen: tuple[Any, ...]
) -> Tensor:
    """Compute each candidate's contribution to a query: those that its sum adds up, one by one."""
    found: list[Tensor] = []
    bounded, fractions = BoundedSum.total, Fractions.total

    def vectors(own: BoundedSum, values: Tensor) -> Tensor:
        found.append(torch.vmap(lambda one: bounded(own, one[None]))(values))
        return bounded(own, values)

    def counts(own: Fractions, bins: Tensor, rows: Tensor) -> Tensor:
        units = zip(bins.unsqueeze(1), rows.unsqueeze(1), strict=True)
        found.append(torch.stack([fractions(own, *unit).flatten() for unit in units]))
        return fractions(own, bins, rows)

    with (
        mock.patch.object(BoundedSum, "total", vectors),
        mock.patch.object(Fractions, "total", counts),
    ):
        total(
            CloningSource(store, source._split) if isinstance(source, CloningSource) else store,
            *seen,
        )
    return torch.cat(found).float() / ONE


def _updates(setup: Any, maps: Any, weights: Any, store: UnitStore) -> Tensor:
    source, kernel, found = setup.view(store), setup.kernel(), []
    for units in torch.split(torch.arange(source.units), 256):
        batches = read_batches(source, units, setup.local, setup.mechanism.entropy, rows=1)
        batches = batches.standardise(maps)
        found.append(torch.cat([part.flatten(1) for part in kernel.updates(weights, batches)], 1))
    return torch.cat(found)


def _returns(asked: Behaviour, problem: Any, store: UnitStore, before: tuple[Any, ...]) -> Tensor:
    found = []
    for units in torch.split(torch.arange(store.units), 4096):
        rows = asked.contributions(problem, Episodes.read(store, units), *before)
        found.append(L2Clip(1.0).finish(rows).float())
    return torch.cat(found)


def scores(seen: list[Release], store: UnitStore) -> dict[str, Floats]:
    """Score each candidate by each stage's releases: the sum of its log-likelihood ratios of "in"
    to "out", ``[m]``.

    Others' coins are noise too: their variance is known, and directions where it is large count
    less.
    """
    found: dict[str, Tensor] = {}
    for (stage, what, size), group in groupby(
        seen, lambda each: (each.stage, each.what, len(each.noisy))
    ):
        releases, shrink = list(group), torch.empty(0)
        print(f"  {stage} {what}: {len(releases)} releases of {size} numbers", flush=True)
        for release in releases:
            rows, variance = release.contributions(store), release.deviation**2
            if not shrink.numel():
                alone = variance / len(releases)
                if size <= MOST_SHRUNK:
                    own_noise = alone * torch.eye(size, dtype=torch.float64)
                    shrink = torch.linalg.solve((rows.T @ rows).double() / 4 + own_noise, own_noise)
                else:
                    shrink = torch.tensor(
                        alone / (float(rows.square().sum()) / 4 / size + alone), dtype=torch.float64
                    )
            gap = release.noisy - rows.sum(0, dtype=torch.float64) / 2
            gap = shrink @ gap if shrink.dim() else shrink * gap
            own = (rows @ gap.float()).double() / variance
            found[stage] = found.get(stage, torch.zeros(len(rows), dtype=torch.float64)) + own
    return {stage: score.numpy() for stage, score in found.items()}


def bounds(claimed: float, score: Floats, included: Booleans) -> LowerBounds:
    """Bound ε by scores: all releases together are one Gaussian release."""
    return lower_bounds(score, included, claimed, DELTA)


def gaussian_mechanism(epsilon: float, units: int) -> Mechanism:
    """Return one Gaussian release at ε, which all releases of a run together are."""
    return Mechanism(
        units,
        "person",
        1.0,
        L2Clip(1.0),
        1 / gaussian_mean(epsilon, DELTA),
        1,
        DELTA,
    )


def write_log(file: Path, present: Booleans) -> None:
    """Write two rows, so one transition, for each person who is present.

    Signs are random: no two people are alike.
    """
    generator, candidates = np.random.default_rng(0), len(present)
    state = generator.choice([-0.5, 0.5], (candidates, OBSERVED))
    after = state + generator.choice([-0.5, 0.5], state.shape)
    action, reward = (
        generator.choice([-1.0, 1.0], (candidates, ACTIONS)),
        generator.uniform(-1, 1, candidates),
    )
    names = [*(f"o{i}" for i in range(OBSERVED)), *(f"a{i}" for i in range(ACTIONS)), "reward"]
    values = np.stack((np.c_[state, action, reward], np.c_[after, 0 * action, 0 * reward]), 1)[
        present
    ]
    people = np.repeat([f"p{i:06d}" for i in range(candidates)], 2).reshape(-1, 2)[present].ravel()
    log = pd.DataFrame(values.reshape(-1, len(names)).round(4), columns=names)
    log.insert(0, "step", np.tile([0, 1], int(present.sum())))
    log.insert(0, "person", people)
    log.to_csv(file, index=False)


def project(folder: Path, log: Path, changes: dict[str, Any]) -> None:
    """Make a project of a log by `primorl init`."""
    app(["init", str(folder), f"--csv={log}"], standalone_mode=False)
    (drafted,) = set((folder / "datasets").glob("*.yaml")) - {folder / "datasets/defaults.yaml"}
    content = yaml.safe_load(drafted.read_text(encoding="utf-8"))
    content |= {"unit": "person", "trajectories_per_person": None, "horizon": 2}
    content["options"] |= {"trajectory_ids": "global"}
    content["options"]["columns"] |= {
        "unit": "person",
        "trajectory": "person",
        "order": "step",
        "observation": [f"o{i}" for i in range(OBSERVED)],
        "action": {
            "columns": [f"a{i}" for i in range(ACTIONS)],
            "low": [-1.0] * ACTIONS,
            "high": [1.0] * ACTIONS,
        },
        "reward": "reward",
    }
    bounds = {"low": [-1.0] * OBSERVED, "high": [1.0] * OBSERVED}
    content["bounds"] = {"observation": bounds, "reward": [-1.0, 1.0]}
    content["card"] = dict.fromkeys(("owner", "purpose", "contact", "licence"), "an audit")
    drafted.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    settings = yaml.safe_load((folder / PARAMS).read_text(encoding="utf-8"))
    for block, own in changes.items():
        settings[block] |= own
    (folder / PARAMS).write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def run(folder: Path, names: tuple[str, ...], tap: Tap) -> None:
    """Run stages in a project."""
    sys.argv = sys.argv[:1]
    with chdir(folder):
        for name in names:
            tap.stage, stage, started = name, import_module(f"pipeline.{name}"), time.perf_counter()
            if run_stage(name, name, stage.body, getattr(stage, "idle", None)) != 0:
                raise SystemExit(f"{name} failed")
            print(f"  {name}: {time.perf_counter() - started:.1f} s", flush=True)


def whole(
    place: Path, name: str, epsilon: float, twin: str = AS_STATED
) -> tuple[dict[str, float], dict[str, Floats], Booleans]:
    """Run all stages once, and attack.

    Args:
        place: a folder, in which the project of all candidates stays for further runs.
        name: of the run's project.
        epsilon: of all charges together.
        twin: with half of the stated noise, or without the clip of rounds; it must be found.

    Returns:
        The claims by attacker, from the statements and the ledger; their scores; and who was in.
    """
    included = half(CANDIDATES[epsilon])
    asked = {"discount": 1.0, "return_bounds": [-1.0, 1.0], "draw": 0}
    changes = {
        "privacy": {
            "target_epsilon": epsilon,
            "shares": SHARES,
            "rounds": 15,
        },
        "dynamics": {"degree": 2},
        "policy": {"epochs": 1, "updates_per_epoch": 20},
        "evaluation": {"private": asked},
        "compute": {"threads": 1},
    }
    tap = Tap()
    for folder, present in ((place / "all", np.ones_like(included)), (place / name, included)):
        if not folder.exists():
            write_log(folder.with_suffix(".csv"), present)
            project(folder, folder.with_suffix(".csv"), changes)
            run(folder, DATA, tap)
    # Queries have few numbers, in which others' coins hide all: nearly all of the ε is for the
    # rounds.
    little = mock.patch.dict(heads.SHARES, dict.fromkeys(heads.SHARES, QUERY_SHARE))
    with tap.attached(), broken(twin), little:
        run(place / name, PAID, tap)
    bundle, store = place / f"{name}-bundle", UnitStore.open(place / "all" / PRIVATE)
    with chdir(place / name):
        app(
            ["release", str(bundle), "--policy=models/policy", "--against-advice"],
            standalone_mode=False,
        )
        answers = json.loads(PRIVATE_EVALUATION.read_text(encoding="utf-8"))
        stated = {"model": Statement.read(MODEL), "clone": Statement.read(BEHAVIOUR)}
    with broken(twin):  # noise apart, candidates' contributions are those of the run
        by_stage = scores(tap.seen, store)
    found = {artefact: by_stage[stage] for artefact, stage in ARTEFACTS.items()}
    last = [each for each in tap.seen if (each.stage, each.what) == ("train_model", "release")][-1]
    inputs = store.flat()[0]
    gap = (
        DeterministicPolicy.load(bundle / "policy").act(inputs[None, :, :OBSERVED])[0]
        - inputs[:, OBSERVED:]
    )
    files = GaussianEnsemble.load(bundle / "dynamics", torch.device("cpu")).weights
    first = torch.cat([part[0, :, : OBSERVED + 1].flatten() for part in files])
    ledger = json.loads((bundle / "ledger-statement.json").read_text(encoding="utf-8"))
    # of a clone its own mechanism, which is the last
    claims = {
        artefact: (each.mechanisms or (each,))[-1].epsilon or 0.0
        for artefact, each in stated.items()
    }
    claims |= {"answers": answers["estimates"][0]["epsilon"], "together": ledger["epsilon"]}
    claims |= dict.fromkeys(("policy file", "random"), claims["together"]) | {
        "model file": claims["model"]
    }
    found |= {
        "together": sum(found.values(), np.zeros(len(included))),
        "model file": (last.contributions(store) @ first).double().numpy(),
        "policy file": -gap.square().sum(1).double().numpy(),
        "random": np.random.default_rng().normal(size=len(included)),
    }
    return claims, found, included


def broken(twin: str) -> AbstractContextManager[object]:
    """Draw half of the stated noise, or let rounds go without a clip."""
    drawn = discrete_gaussian
    if twin == HALF:
        return mock.patch.object(
            mechanisms, "discrete_gaussian", lambda entropy, n, scale: drawn(entropy, n, scale / 2)
        )
    if twin == UNCLIPPED:
        return mock.patch.object(EnsembleClip, "finish", lambda self, updates: updates)
    return nullcontext()


def half(candidates: int) -> Booleans:
    """Draw who is in the log: a random half, so that K, which is public, is the same
    whoever is in.
    """
    included = np.zeros(candidates, dtype=bool)
    included[np.random.default_rng().permutation(candidates)[: candidates // 2]] = True
    return included


def repeated(epsilon: float, times: int, twin: str) -> list[LowerBounds]:
    """Audit one release of a mechanism many times; every candidate has a direction of its own,
    which helps the attacker.
    """
    mechanism = gaussian_mechanism(epsilon, CANDIDATES[epsilon])
    found = []
    with broken(twin):
        for _ in range(times):
            included = half(mechanism.units)
            seen = mechanism.release(torch.from_numpy(included).double())
            found.append(bounds(epsilon, seen.double().numpy(), included))
    return found


def main() -> None:
    """Measure what is not measured yet, keep the rows, and write the table."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    torch.set_num_threads(1)
    known = read("whole_audit")
    for twin, runs, times in ((AS_STATED, 3, 200), (HALF, 1, 20), (UNCLIPPED, 1, 0)):
        with tempfile.TemporaryDirectory() as place:
            for number in range(1, runs + 1):
                what = f"claim {WHOLE:g}{twin}, run {number}"
                if any(each["what"].startswith(f"{what}:") for each in known):
                    continue
                claims, found, included = whole(Path(place), f"run{number}", WHOLE, twin)
                for name, score in found.items():
                    known += rows(what, name, claims[name], score, included)
                keep("whole_audit", known)
        for epsilon in CANDIDATES if times else ():
            what = f"claim {epsilon:g}{twin}: {RELEASES}"
            if all(each["what"] != what for each in known):
                above = sum(each.refutes_the_claim for each in repeated(epsilon, times, twin))
                share = above / times
                known.append(row(COMMAND, what, above, times, "releases", share, "releases"))
                keep("whole_audit", known)
    put(ROOT / "docs/privacy-proofs.md", "whole", table(known))


def rows(
    what: str, name: str, claimed: float, score: Floats, included: Booleans
) -> list[dict[str, object]]:
    """Rows of one attacker: each bound of all releases together, and otherwise the largest."""
    found = bounds(claimed, score, included)
    kinds = found.by_name if name == "together" else {}
    return [
        row(
            COMMAND,
            f"{what}: {name}, {kind}",
            value,
            claimed,
            "the claim",
            value / claimed,
            "epsilon",
        )
        for kind, value in {"largest": found.epsilon, **kinds}.items()
    ]


def table(known: list[dict[str, Any]]) -> str:
    """Write the table of the page: lowest and highest bound of the runs, as shares of each
    attacker's claim.
    """
    lines = [f"| claimed ε | {' | '.join(ATTACKERS)} |", "|---" * (1 + len(ATTACKERS)) + "|"]
    cells = []
    for name in ATTACKERS:
        pattern = f"claim {WHOLE:g}, run .*: {name}, largest"
        own = [each["ratio"] for each in known if re.match(pattern, each["what"])]
        cells.append(f"{min(own):.0%} to {max(own):.0%}" if max(own) > 0 else "0%")
    return "\n".join([*lines, f"| {WHOLE:g} | {' | '.join(cells)} |"])


if __name__ == "__main__":
    main()
