"""Select one of several policies by the private units' scores: charge the ledger, select, write the record."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from primorl.base.errors import PipelineError
from primorl.base.files import check_writable, file_sha256, home
from primorl.base.paths import CHECKPOINTS, MODEL, PARTITIONS, POLICY, SELECTION
from primorl.base.records import Hexadecimal, Line, read_record, record, write_record
from primorl.config.params import Params
from primorl.evaluate.private.problem import EpisodeSource, Problem, check_blocks, portions
from primorl.evaluate.private.scores import CorrectedModel, CorrectedScorer
from primorl.paid import accounts
from primorl.paid.accounts import digest
from primorl.paid.compute import kept_bytes
from primorl.paid.partitions import Partitions, assumptions
from primorl.paid.private import open_private
from primorl.paid.private_evaluation import act_of, evaluation_problem
from primorl.paid.work import paid_work
from primorl.policy.exported import DeterministicPolicy, seed_folders
from primorl.policy.loaded import FINAL
from primorl.privacy.ledger.checkpoint import DataclassState
from primorl.privacy.mechanism.selection import Selection
from primorl.privacy.statement import Statement
from primorl.tracking import StageRun

_VALUE = CorrectedModel(features=256, rollouts=256, bandwidth=0.3, largest_weight=0.0)
ESTIMATORS: dict[str, CorrectedModel] = {
    "model": _VALUE,
    "corrected": replace(_VALUE, largest_weight=1.0),
}
"""Scores by the name that ``--estimator`` takes."""


@dataclass(frozen=True)
class Candidate:
    """One of the policies to choose among.

    Attributes:
        name: its folder.
        sha256: of the policy's file.
        policy: P = 1.
        sound: whether its privacy statement may be relied on.
    """

    name: str
    sha256: str
    policy: DeterministicPolicy
    sound: bool


@record
class CandidateRecord:
    """A candidate in ``reports/selection.json``."""

    name: Line
    sha256: Hexadecimal


@record
class SelectionRecord:
    """``reports/selection.json``: the chosen candidate and its privacy statement. It has no scores."""

    FORMAT: ClassVar[int] = 1

    chosen: Line
    candidates: tuple[CandidateRecord, ...]
    estimator: Line
    settings: dict[Line, Any]
    bias: Line
    privacy: Statement


@dataclass(frozen=True)
class SelectionState(DataclassState):
    """State of a paid selection, as a checkpoint holds it.

    Attributes:
        started: 1 from the moment that the choice may have been made.
        chosen: number of the candidate; None before it is known.
    """

    started: int = 0
    chosen: int | None = None

    @property
    def finished(self) -> bool:
        """Whether the choice is known."""
        return self.chosen is not None

    @property
    def lost(self) -> bool:  # type: ignore[override]
        """Whether the choice may have been made but was not stored. The same charge cannot choose again."""
        return self.started > 0 and not self.finished


def of_folders(folders: Sequence[Path]) -> list[Candidate]:
    """Load the final policy of each folder; raises the errors of `DeterministicPolicy.load`."""
    return [
        Candidate(
            str(folder),
            file_sha256(folder / FINAL),
            DeterministicPolicy.load(folder),
            Statement.read(folder).sound,
        )
        for folder in folders
    ]


def of_seeds(params: Params) -> list[Candidate]:
    """Load the policies of all seeds in params.yaml; raises the errors of `DeterministicPolicy.load`."""
    return of_folders(seed_folders(POLICY, params.policy_seeds))


def select(
    params: Params,
    candidates: Sequence[Candidate],
    *,
    epsilon: float,
    estimator: str,
    run: StageRun,
) -> SelectionRecord:
    """Choose a candidate, once for every set of candidates and settings, and write ``reports/selection.json``.

    The charge is reserved before a private row is read. A finished choice of the same identity is restored at no cost;
    one that was killed before it chose is resumed. The scores are summed before the choice is announced to the ledger,
    so that next to no time lies between the announcement and the stored choice.

    Raises:
        PipelineError: the candidates do not fit the dataset, the budget does not allow the choice, a file is missing
            or broken, or see `check_blocks`.
    """
    partitions = Partitions.open(PARTITIONS, params)
    manifest, score = partitions.manifest, ESTIMATORS[estimator]
    _refuse_repeated(candidates)
    delta = params.privacy.delta
    selection = Selection(
        manifest.private_units, manifest.info.unit, len(candidates), epsilon, delta
    )
    discount = params.policy.discount if manifest.info.horizon is None else 1.0
    problem = evaluation_problem(
        params, partitions, act_of(candidates[0].policy), discount=discount, return_bounds=None
    )
    _refuse_others(candidates, problem)
    for candidate in candidates:
        check_blocks(act_of(candidate.policy), problem.observation_size)
    check_writable([SELECTION.parent, home() / CHECKPOINTS / "charge"])
    identity = _identity(params, partitions, candidates, score, problem, epsilon)
    request = accounts.request(
        params, run, manifest.info.dataset, partitions.version, "select", selection.event, identity
    )
    statement = selection.statement(
        dataset_fingerprint=manifest.info.dataset_fingerprint,
        public_assumptions=[*assumptions(manifest), "the candidates and the released model"],
    )
    with paid_work(params, run, request, SelectionState(), SelectionState.restore) as work:
        payment = work.payment
        chosen = None if payment.state is None else payment.state.chosen
        if chosen is None:
            scorer = score.fitted(problem, [candidate.policy for candidate in candidates])
            private = open_private(
                partitions, payment.charge, kept_bytes(params.compute), episodes=True
            )
            total = sum_scores(selection, scorer, private)
            payment.save_checkpoint(SelectionState(started=1))
            chosen = selection.choose(total)
            payment.save_checkpoint(SelectionState(started=1, chosen=chosen))
        work.commit()
        statement = work.add_charge_to(statement)
    unsound = [
        f"{c.name}: its own statement may not be relied on" for c in candidates if not c.sound
    ]
    found = SelectionRecord(
        chosen=candidates[chosen].name,
        candidates=tuple(CandidateRecord(name=c.name, sha256=c.sha256) for c in candidates),
        estimator=estimator,
        settings=asdict(score),
        bias=score.bias,
        privacy=replace(
            statement, void=(*statement.void, *unsound), public_units=manifest.public_units
        ),
    )
    write_record(SELECTION, found)
    return found


def read(path: Path = SELECTION) -> SelectionRecord:
    """Read the record of a selection; raises the errors of `read_record`."""
    return read_record(
        path, SelectionRecord, "run `primorl select`, which restores a finished choice at no cost"
    )


def sum_scores(selection: Selection, scorer: CorrectedScorer, source: EpisodeSource) -> Tensor:
    """Sums of the scores of all units, int64 ``[k]``. Sensitive."""
    total = torch.zeros(selection.candidates, dtype=torch.int64)
    for episodes in portions(source, torch.arange(source.units), row_bytes=scorer.row_bytes):
        total += selection.scores.total(scorer.scores(episodes))
    return total


def _identity(
    params: Params,
    partitions: Partitions,
    candidates: Sequence[Candidate],
    score: CorrectedModel,
    problem: Problem,
    epsilon: float,
) -> str:
    """Digest everything that determines a choice but chance and code; a key that is added charges every project again.

    That ``evaluation.private.draw`` pays for another draw of a choice came later, so it has a key where it is not 0.
    """
    draw = params.evaluation.private.draw
    content = {
        "data": partitions.identity,
        "select": [candidate.sha256 for candidate in candidates],
        "model": file_sha256(MODEL / "model.safetensors"),
        "score": [score.name, asdict(score), problem.seed, problem.discount],
        "epsilon": epsilon,
        "draw": params.privacy.draw,
        **({"of_answers": draw} if draw else {}),
    }
    return digest(content)


def _refuse_repeated(candidates: Sequence[Candidate]) -> None:
    if len(candidates) < 2:
        raise PipelineError(f"select: found {len(candidates)} candidate(s), allowed are at least 2")
    if len({candidate.sha256 for candidate in candidates}) < len(candidates):
        raise PipelineError("select: two candidates are the same policy; name each once")


def _refuse_others(candidates: Sequence[Candidate], problem: Problem) -> None:
    for candidate in candidates:
        policy = candidate.policy
        sizes = policy.observation_size, policy.action_size, policy.discrete_actions
        if sizes != (problem.observation_size, problem.action_size, problem.discrete_actions):
            raise PipelineError(
                f"{candidate.name}: found a policy for {sizes[0]} observations and {sizes[1]} actions, allowed are "
                f"{problem.observation_size} and {problem.action_size}, as the dataset has"
            )
