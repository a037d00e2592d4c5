"""What a report is made from: files of the run that are released or public, and nothing private.

The ledger's history and other results are given by `primorl report` alone: they are no part of a stage's inputs.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from primorl.dynamics.config import ModelConfig
from primorl.dynamics.ends import with_ends
from primorl.dynamics.ensemble import GaussianEnsemble
from primorl.dynamics.pessimism import PessimisticModel
from primorl.dynamics.seed_generators import SeedGenerators
from primorl.evaluation.private.results import Answer, PrivateEvaluation
from primorl.evaluation.summary import Summary, stated
from primorl.evaluation.survival import PublicTrajectories
from primorl.evaluation.wording import plural
from primorl.policy.config import PolicyConfig
from primorl.policy.exported import DeterministicPolicy
from primorl.privacy.accounting.privacy_filter import Cost
from primorl.privacy.statement import Statement
from primorl.project.errors import PipelineError
from primorl.project.paths import BEHAVIOUR, CURVES, MODEL, MOPO, POLICY, PRIVATE_EVALUATION, PUBLIC, SUMMARY
from primorl.project.records import to_json
from primorl.release.composition import whole, with_account
from primorl.release.stated_figures import check_epsilon, check_with_parts
from primorl.report.agreement import Epoch, refuse_another_curve, refuse_another_dataset, refuse_other_rows
from primorl.trajectories.storage.store import UnitStore

_ROLLOUTS, _MOST_ROWS = 256, 16384
_SEED = 0
_LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_NEAR = 0.01  # of an action's range: the policy is at its bound

Other = tuple[str, float | None, float | None, str]
"""A result that MLflow knows of: name, ε (None: no guarantee), value, who says so."""


@dataclass(frozen=True)
class Rollouts:
    """Means over rollouts of the policy in the released model, one number for each step.

    Attributes:
        reward: without the penalty.
        uncertainty: u; the penalty is λ times this.
        measure: name of u.
        penalised: the reward less the penalty; None: λ is not known.
    """

    reward: tuple[float, ...]
    uncertainty: tuple[float, ...]
    measure: str
    penalised: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Actions:
    """Actions in the public rows, and those of the policy in the same states.

    Attributes:
        names: of the action's dimensions, or of the discrete actions.
        discrete: whether actions are discrete.
        recorded: in the rows: of each dimension five levels (least, quartiles, greatest) from 0 at the lower bound to 1
            at the upper; of each discrete action its share, one number.
        chosen: the policy's, likewise.
        at_bound: of each dimension the share of rows within 1% of the range of a bound, recorded and chosen; discrete
            actions have none.
    """

    names: tuple[str, ...]
    discrete: bool
    recorded: tuple[tuple[float, ...], ...]
    chosen: tuple[tuple[float, ...], ...]
    at_bound: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())


@dataclass(frozen=True)
class Spending:
    """The ledger's history of the dataset's units.

    Attributes:
        charges: stage, day, and ε of all charges up to and with it.
        budget: the most ε; None: there is no bound.
        delta: δ of all.
        costs: of each charge in the privacy filter's currencies, by its id.
    """

    charges: tuple[tuple[str, str, float], ...]
    budget: float | None
    delta: float
    costs: Mapping[str, Cost]


@dataclass(frozen=True)
class Facts:
    """All that a report says, as plain values.

    Attributes:
        summary: content of ``metrics/summary.json``.
        statement: of the policy.
        training: statement of the model, whose rounds it has.
        released: keys of a statement of what `counted` says.
        counted: what the bounds on attacks count, in words: this run's results, or all that the ledger has.
        curve: after every epoch.
        model_error: of each target on the public split, in units of its variance; empty: nobody is public.
        checks: answers of the private units on how wrong the model is; empty: they were not asked.
        rollouts: in the model; None: the policy was not trained in it.
        first_states: quartiles of the public first states, name by name; empty: nobody is public.
        first_shares: of the public first states that are of a category, for each name that is a category.
        actions: of the public rows and of the policy; None: nobody is public, or an action has no finite bounds.
        spending: None: not asked for.
        others: results on the same dataset, best first; None: not asked for.
        mlflow: where the run is found.
        policy: content of ``config.json`` of the policy.
        declared: what people declared for the card, by key; empty: nothing.
        discount: of the private units' answers.
    """

    summary: Mapping[str, Any]
    statement: Statement
    training: Statement
    released: Mapping[str, Any]
    counted: str
    curve: Sequence[Epoch]
    model_error: Mapping[str, float]
    rollouts: Rollouts | None
    first_states: Mapping[str, Sequence[float]]
    spending: Spending | None = None
    others: Sequence[Other] | None = None
    actions: Actions | None = None
    checks: Sequence[Answer] = ()
    first_shares: Mapping[str, float] = field(default_factory=dict)
    mlflow: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    discount: float = 1.0

    @property
    def void(self) -> tuple[str, ...]:
        """Reasons not to rely on what the page counts, or on a part of it."""
        return tuple(dict.fromkeys((*self.statement.void, *self.summary["void"], *self.released["void"])))

    @property
    def sound(self) -> bool:
        """Whether everything that the page counts has a guarantee, and no part of it is void."""
        return self.statement.private and bool(self.released["private"]) and not self.void

    @property
    def compared(self) -> Sequence[Other]:
        """Those of ``others`` that the page shows."""
        return _compared(self.others)


def read_facts(
    *,
    dataset: str,
    uncertainty: str,
    penalty: float | None = None,
    spending: Spending | None = None,
    others: Sequence[Other] | None = None,
    mlflow: str = "",
    declared: Mapping[str, str] | None = None,
) -> Facts:
    """Read the run's files in the working directory.

    Args:
        dataset: `dataset` of params.yaml.
        uncertainty: `policy.uncertainty`.
        penalty: `policy.penalty`, λ; None: not known.
        spending: see `Facts`.
        others: see `Facts`.
        mlflow: see `Facts`.
        declared: see `Facts`.

    Raises:
        PipelineError: a file is missing or broken, or the results are of another dataset, model or policy, or the
            public rows or the curve are of another run; one line.
    """
    found, cpu = Summary.read(SUMMARY), torch.device("cpu")
    refuse_another_dataset(found, dataset)
    folder = MOPO if found.variant == "mopo" else POLICY
    if (stale := found.other_files(MODEL, folder)) is not None:
        raise PipelineError(f"{SUMMARY}: {stale}")
    answers = PrivateEvaluation.read(PRIVATE_EVALUATION)
    answers.refuse_other_files(PRIVATE_EVALUATION, MODEL, folder, BEHAVIOUR)
    statement, training = Statement.read(folder), Statement.read(MODEL)
    for key, said in stated(statement, answers).items():
        if getattr(found, key) != said:
            raise PipelineError(
                f"{SUMMARY}: {key}: not what {folder / 'privacy.json'} and {PRIVATE_EVALUATION} say; "
                "run `dvc repro evaluate`"
            )
    clone = Statement.read(BEHAVIOUR) if (BEHAVIOUR / "privacy.json").exists() else None
    if statement.private:
        parts = {str(MODEL): training} | ({} if clone is None else {str(BEHAVIOUR): clone})
        near = PolicyConfig.read(folder).clone_error is not None
        check_with_parts(folder, statement, parts, near_clone=near)
    for each in answers.statements.values():
        if each.private:
            check_epsilon(PRIVATE_EVALUATION, each)
    asked = to_json(answers) if answers.asked else None
    own = [training, *([] if clone is None else [clone]), *answers.statements.values()]
    released = whole(training.to_json(), None if clone is None else clone.to_json(), asked, training.delta or 0.0)
    counted = f"this run's {_listed(clone=clone is not None, answers=answers.asked)}"
    if spending is not None:
        released = _with_others(released, own, spending, others)
        counted = f"the results of all charges on these {plural(training.unit)} in the ledger"
    summary = found.to_json()
    public, points = UnitStore.open(PUBLIC), _curve(CURVES)
    refuse_other_rows({folder: statement, MODEL: training}, public.units)
    refuse_another_curve(found, points)
    ensemble = GaussianEnsemble.load(MODEL, cpu)
    errors: dict[str, float] = {}
    starts = torch.zeros(0, ensemble.architecture.observation_size)
    quartiles: dict[str, Sequence[float]] = {}
    shares: dict[str, float] = {}
    names, config, actions = _names(ModelConfig.read(MODEL)), PolicyConfig.read(folder), None
    if public.units > 0:
        inputs, targets = public.flat()
        errors = _errors(ensemble, inputs, targets, names)
        actions = compared_actions(DeterministicPolicy.load(folder), inputs, config.action_names)
        starts = public.first_observations()
        quartiles = dict(zip(names, _levels(starts), strict=False))
        shares = {names[at]: float(starts[:, at].mean()) for at in _categories(public)}
    rollouts = None
    if summary["variant"] != "mopo" and len(starts):
        policy, steps = DeterministicPolicy.load(POLICY), _steps(summary, public)
        ended = with_ends(ensemble, config.ends)
        (reward, doubt), (penalised, _) = (
            _rollouts(PessimisticModel(ended, uncertainty=uncertainty, penalty=each), policy, starts, steps)
            for each in (0.0, penalty or 0.0)
        )
        rollouts = Rollouts(reward, doubt, uncertainty, None if penalty is None else penalised)
    return Facts(
        summary=summary,
        statement=statement,
        training=training,
        released=released,
        counted=counted,
        curve=points,
        model_error=errors,
        checks=tuple(each for each in answers.estimates if each.of == "model"),
        rollouts=rollouts,
        first_states=quartiles,
        first_shares=shares,
        actions=actions,
        spending=spending,
        others=others,
        mlflow=mlflow,
        policy=to_json(config),
        declared=declared or {},
        discount=answers.discount,
    )


def _with_others(
    released: Mapping[str, Any], own: Sequence[Statement], spending: Spending, others: Sequence[Other] | None
) -> Mapping[str, Any]:
    """The guarantee of a page that also shows other results: of everything that was charged on the same units.

    Nothing is guaranteed of a page that shows a value without an ε, or one whose ε is more than that of all these
    charges: another ledger paid for it. δ is the smaller one of the run and the budget.
    """
    delta = min(spending.delta, released["delta"] or spending.delta)
    together = with_account(released, [each.to_json() for each in own], spending.costs, delta)
    most = together["epsilon"] or 0.0
    beyond = any(epsilon is None or epsilon > most for _, epsilon, _, _ in _compared(others))
    return {**together, "private": False, "profile": [], "attacks": []} if beyond else together


def _compared(others: Sequence[Other] | None) -> Sequence[Other]:
    """The results that are shown: all that have a value, where there are two or more."""
    known = [each for each in others or () if each[2] is not None]
    return known if len(known) > 1 else ()


def _listed(*, clone: bool, answers: bool) -> str:
    """What a run released, as the end of a sentence."""
    parts = ["model", *(["clone"] if clone else []), "policy", *(["answers"] if answers else [])]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _names(model: ModelConfig) -> list[str]:
    return [*(model.observation_names or (f"observation {i}" for i in range(model.observation_size))), "reward"]


def _errors(ensemble: GaussianEnsemble, inputs: Tensor, targets: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Mean squared error of the members' mean prediction, in units of the target's variance."""
    stride = -(-len(inputs) // _MOST_ROWS)
    inputs, targets, S = inputs[::stride], targets[::stride], ensemble.architecture.observation_size
    with torch.no_grad():
        mean, _, _ = ensemble.predict(inputs[:, :S], inputs[:, S:])
    wanted = targets[:, : S + 1]
    variance = wanted.var(0)
    error = (mean.mean(0) - wanted).square().mean(0) / variance.where(variance > 0, 1.0)
    return dict(zip(names, error.tolist(), strict=True))


def compared_actions(policy: DeterministicPolicy, inputs: Tensor, names: Sequence[str] | None) -> Actions | None:
    """Compare the actions of public rows, ``[R, S + A]`` in the log's units, with the policy's in the same states."""
    S = policy.observation_size
    low, width = policy.action_low, policy.action_high - policy.action_low
    if not (torch.isfinite(width) & (width > 0)).all():
        return None
    called = tuple(names or (f"action {i}" for i in range(policy.action_size)))
    done = torch.cat([policy.act(rows[None, :, :S])[0] for rows in torch.split(inputs, _MOST_ROWS)])
    recorded, chosen = (inputs[:, S:] - low) / width, (done - low) / width
    if policy.discrete_actions:
        return Actions(called, True, _rows_of(recorded.mean(0)[:, None]), _rows_of(chosen.mean(0)[:, None]))
    return Actions(called, False, _levels(recorded), _levels(chosen), at_bound=(_ends(recorded), _ends(chosen)))


def _levels(values: Tensor) -> tuple[tuple[float, ...], ...]:
    """Least, quartiles and greatest of each column of ``[R, C]``."""
    # torch.quantile refuses more than 2**24 numbers
    return _rows_of(torch.from_numpy(np.quantile(values.numpy(), _LEVELS, axis=0).T))


def _ends(actions: Tensor) -> tuple[float, ...]:
    """Share of rows at either bound, for each dimension."""
    return tuple(((actions < _NEAR) | (actions > 1 - _NEAR)).double().mean(0).tolist())


def _categories(public: UnitStore) -> list[int]:
    """Dimensions of the observation that are 1 in one category and 0 in the others."""
    return [at for first, size in public.info.spaces.one_hot for at in range(first, first + size)]


def _rows_of(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, matrix.tolist()))


def _steps(summary: Mapping[str, Any], public: UnitStore) -> int:
    """Steps of a rollout: those of a value in the model, else the longest public trajectory, at most 200."""
    longest = int(PublicTrajectories.of(public).length.max())
    return min(summary.get("model_value_horizon") or longest, 200)


@torch.no_grad()
def _rollouts(
    model: PessimisticModel, policy: DeterministicPolicy, starts: Tensor, steps: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    generators = SeedGenerators.of((_SEED,), starts.device)
    state = starts[generators.randint(len(starts), _ROLLOUTS)]
    alive = torch.ones(_ROLLOUTS, dtype=torch.bool)
    rewards, doubts = [], []
    for _ in range(steps):
        step = model.step(state, policy.act(state.unsqueeze(0))[0], generators)
        rewards.append(float(step.reward[alive].mean()))
        doubts.append(float(step.uncertainty[alive].mean()))
        state = step.next_observation
        if step.terminated is not None:
            alive &= ~step.terminated
            if not alive.any():
                break
    return tuple(rewards), tuple(doubts)


def _curve(path: Path) -> list[Epoch]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        kind = "model" if rows and rows[0]["return_mean"] == "" else "return"
        names = ("model_value" if kind == "model" else "return_mean", f"{kind}_low", f"{kind}_high")
        return [Epoch(int(row["epoch"]), *(float(row[name]) for name in names)) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as broken:
        raise PipelineError(f"{path}: not a curve ({type(broken).__name__}); run `dvc repro evaluate`") from None
