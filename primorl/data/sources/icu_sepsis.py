"""``source: icu-sepsis``: simulated patients of the MDP that the package ``icu-sepsis`` ships."""

import zipfile
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from primorl.base.errors import PipelineError
from primorl.config.datasets import IcuSepsisDataset
from primorl.data.sources import Reader
from primorl.data.sources.spaces import declared
from primorl.data.storage.schema import Spaces, trajectory_table
from primorl.simulators.icu_sepsis import ENVIRONMENTS, LIMIT, SURVIVAL, Tables, ended, tables

_FILE = "patients.npz"
_ROWS_PER_BATCH = 2**16
_TREATED, _CONDITIONS = 47, 3  # where the one-hot part of `centres` begins, and its size


class IcuSepsis:
    """See `primorl.data.sources.Source`.

    Raises:
        PipelineError: if the environment does not have the observations that the options name.
    """

    def __init__(self, name: str, dataset: IcuSepsisDataset):
        self._options = dataset.options
        self._environment = ENVIRONMENTS[dataset.options.observation]
        if dataset.environment != self._environment:
            raise PipelineError(
                f"datasets/{name}.yaml: environment: found {dataset.environment}; allowed with "
                f"options.observation: {dataset.options.observation} is {self._environment}"
            )

    def collect(self, target: Path) -> None:
        """Simulate the patients; kept are the numbers of their states and actions, and how likely each action was."""
        declared(self._environment)  # a clear error where the package is missing
        patients = simulate(
            tables(), self._options.patients, self._options.expert_share, self._options.seed
        )
        np.savez_compressed(target / _FILE, **vars(patients))

    def open(self, raw: Path) -> Reader:
        """Read them with the observations that the entry asks for."""
        spaces, horizon = declared(self._environment)
        one_hot = self._options.observation == "one_hot"
        block = (0, spaces.observation_size) if one_hot else (_TREATED, _CONDITIONS)
        seen = tables().observations[self._options.observation]
        named = self._options.behaviour_probabilities
        return PatientReader(raw / _FILE, replace(spaces, one_hot=(block,)), horizon, seen, named)


@dataclass(frozen=True)
class Patients:
    """P patients, one after the other.

    Attributes:
        states: the states of each, the last one included [sum of lengths + P].
        actions: [sum of lengths].
        lengths: steps of each [P].
        probabilities: with which each action was chosen [sum of lengths].
    """

    states: npt.NDArray[np.int16]
    actions: npt.NDArray[np.int8]
    lengths: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float32]


def simulate(mdp: Tables, patients: int, expert_share: float, seed: int) -> Patients:
    """Treat ``patients`` patients at once, by the expert's policy softened: now and then any action, each as likely.

    Args:
        mdp: the tables.
        patients: P.
        expert_share: the probability, at every step, that the expert's policy chooses; in (0, 1].
        seed: of everything that is drawn.
    """
    rng = np.random.default_rng(seed)
    behaviour = expert_share * mdp.expert + (1 - expert_share) / mdp.actions
    policy = np.cumsum(behaviour, axis=1)
    policy[:, -1] = 1.0
    states = [mdp.starts(rng.random(patients))]
    actions: list[npt.NDArray[np.int8]] = []
    treated = np.arange(patients)
    lengths = np.zeros(patients, dtype=np.int32)
    for step in range(1, LIMIT + 1):
        now = states[-1][treated]
        chosen = (rng.random((len(now), 1)) >= policy[now]).sum(axis=1)
        after, taken = np.full(patients, -1, dtype=np.int16), np.full(patients, -1, dtype=np.int8)
        after[treated], taken[treated] = mdp.step(now, chosen, rng.random(len(now))), chosen
        states.append(after)
        actions.append(taken)
        lengths[treated] = step
        treated = treated[~ended(after[treated])]
        if treated.size == 0:
            break
    by_patient, done = np.stack(states, axis=1), np.stack(actions, axis=1)
    visited, taken_there = by_patient[:, :-1][done >= 0], done[done >= 0]
    probabilities = behaviour[visited, taken_there].astype(np.float32)
    return Patients(by_patient[by_patient >= 0], taken_there, lengths, probabilities)


class PatientReader:
    """See `primorl.data.sources.Reader`: every patient is one unit of one trajectory."""

    def __init__(
        self,
        path: Path,
        spaces: Spaces,
        horizon: int | None,
        seen: npt.NDArray[np.float32],
        named: bool,
    ):
        self.path, self.spaces, self.horizon = path, spaces, horizon
        self.behaviour_probabilities, self._seen = named, seen

    def tables(self) -> Generator[pa.Table]:
        """See `Reader.tables`."""
        patients = self._load()
        ends = np.cumsum(patients.lengths, dtype=np.int64)
        starts = ends - patients.lengths
        batch = starts // _ROWS_PER_BATCH
        for members in np.split(np.arange(len(ends)), np.flatnonzero(np.diff(batch)) + 1):
            rows = [slice(int(starts[i]), int(ends[i])) for i in members]
            states = [
                patients.states[row.start + i : row.stop + i + 1]
                for i, row in zip(members, rows, strict=True)
            ]
            over = [ended(visited[1:]) for visited in states]
            ids = [f"{i:09d}" for i in members]
            columns = [
                [patients.actions[row] for row in rows],
                [(visited[1:] == SURVIVAL).astype(np.float32) for visited in states],
                over,
                [(np.arange(len(ends)) == len(ends) - 1) & ~ends for ends in over],
            ]
            if self.behaviour_probabilities:
                columns.append([patients.probabilities[row] for row in rows])
            yield trajectory_table(
                self.spaces, ids, ids, [self._seen[visited] for visited in states], *columns
            )

    def _load(self) -> Patients:
        try:
            with np.load(self.path) as file:
                patients = Patients(
                    file["states"], file["actions"], file["lengths"], file["probabilities"]
                )
            rows, others = len(patients.actions), len(patients.states) - len(patients.lengths)
            whole = rows == len(patients.probabilities) == patients.lengths.sum() == others
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
            whole = False
        if not whole:
            raise PipelineError(
                f"{self.path}: missing, truncated or corrupt; run `dvc repro collect` again"
            )
        return patients
