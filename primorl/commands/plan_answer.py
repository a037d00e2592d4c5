"""The answer of ``primorl plan``: the cost of a mechanism, the account before it, and whether the
budget allows it.

Options that are not given are taken from ``params.yaml``.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

from primorl.base.dvc import Status
from primorl.base.errors import PipelineError
from primorl.base.files import finite, home
from primorl.base.paths import MANIFEST, PARAMS, PARTITIONS, PUBLIC, SECRET, UNITS
from primorl.config.params import Params, load
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine.heads import LENGTHS
from primorl.paid.accounts import (
    begun_ledger,
    check_secret,
    dataset_version,
    open_public,
    refuse_missing_charges,
)
from primorl.paid.bill import MAKE_DATA, UNKNOWN, Bill, same_questions
from primorl.paid.clone import check_clone
from primorl.paid.fitting import Fit, fitted
from primorl.paid.model import check_choices, make_plan, query_noises
from primorl.paid.partitions import Partitions
from primorl.paid.public_checks import Objections, objections
from primorl.paid.questions import MEAN_SHARE
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.rounding import at_least, at_most, left_of
from primorl.privacy.accounting.solving import solve_noise_multiplier, solve_rounds
from primorl.privacy.ledger.account import Account, total_of
from primorl.privacy.statement import RELATION_NAME

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """Options of the command line; None where one was not given."""

    sampling_probability: float | None = None
    noise_multiplier: float | None = None
    rounds: int | None = None
    delta: float | None = None
    queries: tuple[float, ...] | None = None
    target_epsilon: float | None = None
    solve: str | None = None
    units: int | None = None


@dataclass(frozen=True)
class LedgerAndPartitions:
    """The ledger and the partitions, read once.

    Attributes:
        begun: whether there is a ledger.
        account: everything that was charged to the units of the partitions.
        partitions: None: the public split or the digests of the units are not here.
    """

    begun: bool
    account: Account
    partitions: Partitions | None


class Settings:
    """The options, and ``params.yaml`` for those that were not given.

    Args:
        options: of the command line.
        params: choices in the place of those of ``params.yaml``; None: those.
    """

    def __init__(self, options: Options, params: Params | None = None) -> None:
        self.options = options
        self._given = params

    @cached_property
    def params(self) -> Params | None:
        """The project's choices; None where there is no ``params.yaml``."""
        return self._given or (load(PARAMS) if PARAMS.exists() else None)

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of the partitioned dataset; None before there is one."""
        return Manifest.load(MANIFEST) if MANIFEST.exists() else None

    @cached_property
    def known(self) -> "LedgerAndPartitions":
        """The partitions and the ledger; for where there are ``params.yaml`` and a manifest."""
        assert self.params is not None
        ledger, partitions, account = begun_ledger(self.params), None, Account(())
        with nullcontext() if ledger is None else closing(ledger):
            refuse_missing_charges(ledger)
            if (
                PUBLIC.is_dir()
                and UNITS.exists()
                and (ledger is not None or (home() / SECRET).exists())
            ):
                partitions = Partitions.read(PARTITIONS, ledger)
                account = partitions.account
            elif ledger is not None and self.manifest is not None and UNITS.exists():
                # under another one the ledger would recognise nobody
                check_secret(self.manifest, PARTITIONS)
                version = dataset_version(self.manifest, PARTITIONS)
                ledger.check_published(self.manifest.info.dataset, version)
                account = ledger.account(version)
        return LedgerAndPartitions(ledger is not None, account, partitions)

    @cached_property
    def public(self) -> UnitStore:
        """The public split; for where there is one."""
        partitions = self.known.partitions
        return open_public(self.params) if partitions is None else partitions.public

    @cached_property
    def run(self) -> tuple[Params, Manifest] | None:
        """The private run that ``params.yaml`` describes, on the data that are here; None: the
        question is another.
        """
        params, manifest = self.params, self.manifest
        if params is None or manifest is None or not PUBLIC.is_dir() or self.no_guarantee:
            return None
        return (params, manifest) if replace(self.options, units=None) == Options() else None

    @cached_property
    def fit(self) -> tuple[Params, Fit] | None:
        """The project's choices fitted to the data, and their expected success; None: no data are
        here.

        They are fitted to a target ε that an option gives, but where the noise is that of
        ``params.yaml``.
        """
        params, manifest, target = self.params, self.manifest, self.options.target_epsilon
        if (
            params is None
            or manifest is None
            or manifest.info.dataset != params.dataset
            or not PUBLIC.is_dir()
        ):
            return None
        if target is not None and self.options.solve != "rounds":
            params = replace(
                params,
                privacy=replace(params.privacy, target_epsilon=target, noise_multiplier=None),
            )
        return fitted(params, manifest, self.public)

    @cached_property
    def objections(self) -> Objections:
        """Objections to the run that the public split shows; for where there is one."""
        assert self.run is not None
        return objections(*self.run, self.public)

    @property
    def verdict(self) -> tuple[str, str]:
        """Whether the run can learn, and why; for where there is a fit."""
        assert self.fit is not None
        if self.objections.stops:
            return "no", "; ".join(self.objections.stops)
        return self.fit[1].answer, self.fit[1].reason

    def needed(self, name: str) -> Any:
        """Return the number of an option, or of its key in ``params.yaml``.

        Raises:
            PipelineError: neither gives one.
        """
        number = getattr(self.options, name)
        option = f"--{name.replace('_', '-')}"
        if number is None and self.params is None:
            raise PipelineError(
                f"{option}: not given, and there is no {PARAMS} here to take it from; give it"
            )
        if number is None:
            number = self.in_params(name)
        if number is None:
            raise PipelineError(
                f"{option}: not given, and privacy.{name} in {PARAMS} is null; give it"
            )
        return number

    def in_params(self, name: str) -> Any:
        """Return the number of a key in ``params.yaml``'s block ``privacy``, or the fitted one in
        its place.
        """
        params = self.params
        assert params is not None
        if f"privacy.{name}" in params.unfitted:
            if self.fit is None:
                raise PipelineError(
                    f"{PARTITIONS}: not there yet; run `dvc repro partition`, for privacy.{name} "
                    f"in {PARAMS} is fitted to the data; or give --{name.replace('_', '-')}"
                )
            params = self.fit[0]
        return getattr(params.privacy, name)

    @property
    def queries(self) -> tuple[float, ...]:
        """Noise multipliers of the queries beside the rounds."""
        if self.options.queries is not None or self.params is None:
            return self.options.queries or ()
        return tuple(query_noises(self.params).values())

    @property
    def no_guarantee(self) -> bool:
        """Whether the noise is that of ``params.yaml``, and its variant gives no guarantee."""
        options = self.options
        asked = (options.noise_multiplier, options.target_epsilon, options.solve) != (
            None,
            None,
            None,
        )
        return self.params is not None and not asked and self.params.dynamics.variant != "private"

    @property
    def units(self) -> int | None:
        """The number K of private units; None where it is unknown."""
        if self.options.units is not None or self.manifest is None:
            return self.options.units
        return self.manifest.private_units


def asked_for(settings: Settings) -> tuple[Training, float]:
    """Complete the mechanism that the options ask about; solve for the noise or the rounds.

    Returns:
        The training run, and δ.

    Raises:
        PipelineError: options contradict each other, one is missing, the target cannot be met, or
            training would refuse the settings.
    """
    if settings.run is not None:
        return _as_trained(settings, *settings.run)
    options, params = settings.options, settings.params
    target_given = options.solve is not None or options.target_epsilon is not None
    if options.solve == "rounds":
        if options.rounds is not None:
            raise PipelineError(
                "--rounds: found with --solve rounds, which looks for them; leave one of the two "
                "out"
            )
    elif target_given and options.noise_multiplier is not None:
        raise PipelineError(
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or "
            "look for the rounds with --solve rounds"
        )
    if params is None and options.noise_multiplier is None and not target_given:
        raise PipelineError(
            f"--noise-multiplier, --target-epsilon: neither is given, and there is no {PARAMS} "
            "here; give one"
        )
    q, delta, queries = (
        settings.needed("sampling_probability"),
        settings.needed("delta"),
        settings.queries,
    )
    z = options.noise_multiplier
    if options.solve == "rounds":
        target = settings.needed("target_epsilon")
        if z is None and params is not None and params.privacy.target_epsilon is not None:
            own = (
                params.privacy.delta,
                settings.in_params("sampling_probability"),
                settings.in_params("rounds"),
            )
            z = _noise_for(params.privacy.target_epsilon, *own, queries)
        z = z or float(settings.needed("noise_multiplier"))
        rounds = _solved(
            "the noise multiplier", target, partial(solve_rounds, target, delta, q, z, queries)
        )
        return Training(q, z, rounds, queries), delta
    rounds = settings.needed("rounds")
    if z is None and params is not None and not target_given:
        z = params.privacy.noise_multiplier
    if z is None:
        z = _noise_for(settings.needed("target_epsilon"), delta, q, rounds, queries)
    return Training(q, z, rounds, queries), delta


def _as_trained(settings: Settings, params: Params, manifest: Manifest) -> tuple[Training, float]:
    """Return the mechanism that training would run, or raise the error that training would."""
    if settings.fit is None and params.unfitted:
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset}, to which settings are to be fitted, and "
            f"{PARTITIONS} holds {manifest.info.dataset}; run `dvc repro partition`"
        )
    chosen = params if settings.fit is None else settings.fit[0]
    check_choices(chosen, manifest, settings.public)
    check_clone(params, manifest)
    plan = make_plan(chosen, manifest)
    queries = tuple(query.noise_multiplier for query in plan.queries)
    return Training(
        plan.sampling_probability, plan.noise_multiplier, plan.rounds, queries
    ), plan.delta


def _noise_for(
    target: float, delta: float, q: float, rounds: int, queries: tuple[float, ...]
) -> float:
    solve = partial(solve_noise_multiplier, target, delta, q, rounds, queries)
    return _solved("lower sampling probability or rounds", target, solve)


def _solved(otherwise: str, target: float, solve: Callable[[], T]) -> T:
    try:
        return solve()
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or {otherwise}"
        ) from None


def show(options: Options, *, as_json: bool, status: Status | None) -> None:
    """Print the answer to the question that the options ask; ``status`` tells the stages that
    changed.
    """
    settings = Settings(options)
    if as_json:
        print(json.dumps(_as_json(settings), indent=2, allow_nan=False))
        return
    for line in _text(settings, status if settings.run is not None else None):
        print(line)


def _as_json(settings: Settings) -> dict[str, Any]:
    training, delta = asked_for(settings)
    spent, replaced = training.spent(delta, RELATION_NAME), training.spent(delta, "replace_one")
    numbers = {
        "epsilon_pld": spent.epsilon_pld,
        "epsilon_rdp": spent.epsilon_rdp,
        "epsilon_replace_one": replaced.epsilon_pld,
    }
    answer = {
        "private": not settings.no_guarantee,
        **{
            name: None if settings.no_guarantee else finite(number)
            for name, number in numbers.items()
        },
        **asdict(training),
        "delta": delta,
        "neighboring_relation": RELATION_NAME,
    }
    if settings.run is not None and settings.fit is not None:
        can_learn, why = settings.verdict
        answer |= {"can_learn": can_learn, "why": why, "fitted": settings.fit[1].values}
    return answer


def _text(settings: Settings, status: Status | None) -> Iterator[str]:
    training, delta = asked_for(settings)
    params, manifest = settings.params, settings.manifest
    spent = training.spent(delta, RELATION_NAME)
    yield (
        f"sampling probability {at_most(training.sampling_probability, 6)}, noise multiplier "
        f"{at_least(training.noise_multiplier, 6)}, {training.rounds} rounds, at δ "
        f"{at_most(delta, 6)}:"
    )
    if training.queries:
        multipliers = ", ".join(at_least(multiplier, 6) for multiplier in training.queries)
        asked = f"{len(training.queries)} queries of all units (privacy.statistics)"
        yield f"  after {asked}, noise multiplier {multipliers}"
    yield (
        f"  ε {at_most(spent.epsilon_pld, 4)} if one unit is zeroed out "
        f"({at_most(spent.epsilon_rdp, 4)} by RDP)"
    )
    yield (
        f"  ε {at_most(training.spent(delta, 'replace_one').epsilon_pld, 4)} if one unit is "
        "replaced by another"
    )
    if settings.units is not None:
        yield from _cohort_lines(training, delta, settings.units)
    if settings.run is not None and settings.fit is not None:
        yield from _fit_lines(settings, settings.fit[1], settings.run[1])
    if params is None:
        return
    if params.dynamics.variant != "private":
        yield (
            f"  {PARAMS} has dynamics.variant {params.dynamics.variant}: a run of it has no "
            "guarantee at all"
        )
    bill = Bill.of(params, manifest, training.event)
    if len(bill.charges) > 1:
        yield _with_others(bill)
    if line := _today_line(bill):
        yield line
    if manifest is not None and UNITS.exists():
        yield from _ledger_lines(settings, bill, training, status)
    if params.online.asked:
        yield _online_line(params)


def _cohort_lines(training: Training, delta: float, units: int) -> Iterator[str]:
    cohort = training.sampling_probability * units
    yield (
        f"  of {units} units about {cohort:.4g} join a round, {cohort * training.rounds:.4g} "
        "local trainings in all"
    )
    noise = at_least(training.noise_multiplier / cohort)
    yield f"  noise per coordinate of the mean update: {noise} of the clipping norm"
    if delta >= 1 / units:
        yield (
            f"  warning: δ is not below 1/{units}: to publish a whole unit would pass; choose a "
            "smaller one"
        )


def _fit_lines(settings: Settings, fit: Fit, manifest: Manifest) -> Iterator[str]:
    if fit.values:
        said = ", ".join(f"{key} {value}" for key, value in sorted(fit.values.items()))
        yield f"  fitted to public facts of the data: {said}"
    for stop in settings.objections.stops:
        yield f"  can it learn? no: {stop}"
    if not settings.objections.stops:
        yield f"  can it learn? {fit.answer.replace('_', ' ')}: {fit.reason}"
    for warning in settings.objections.warnings:
        yield f"  warning: {warning}"
    asked = settings.params is not None and LENGTHS in query_noises(settings.params)
    if manifest.public_units == 0 and manifest.info.environment is None and not asked:
        yield (
            "  warning: nobody is public, so nothing tells how long recordings go on; values in "
            f"the model count every step up to the horizon ({manifest.info.horizon}), and lie "
            "beyond today's return if most are shorter"
        )


def _with_others(bill: Bill) -> str:
    """State the ε of this run, the clone of the behaviour and the private evaluation of the policy
    together.
    """
    words, questions = [], []
    for each in bill.charges[1:]:
        epsilon = at_most(each.epsilon or 0, 4)
        if each.question is None:
            words.append(f"a clone of the behaviour ({epsilon})")
        else:
            questions.append(f"{each.question} {epsilon}")
    if questions:
        words.append(f"the private evaluation of its policy ({', '.join(questions)})")
    together = total_of(
        [each.event for each in bill.charges], bill.params.privacy.budget.delta
    ).epsilon
    line = f"  with {' and '.join(words)}: about ε {at_most(together, 4)} in all"
    limit = bill.params.privacy.budget.epsilon
    if limit is not None and together > limit:
        line += f", which privacy.budget.epsilon {limit!r} does not allow"
    return line


def _today_line(bill: Bill) -> str | None:
    """Foretell the noise in today's mean return, which grows with its bounds; None: not asked, or
    not known yet.
    """
    manifest, asked, reward = (
        bill.manifest,
        bill.params.evaluation.private,
        bill.params.chosen.bounds.reward,
    )
    event = next((each.event for each in bill.charges if each.question == "behaviour"), None)
    release = None if event is None else Training.of(event)
    if manifest is None or release is None:
        return None
    if asked.return_bounds == "public" and manifest.public_units > 0:
        return None
    origin = ""
    if asked.return_bounds is None or isinstance(asked.return_bounds, str):
        if isinstance(reward, str) or manifest.info.horizon is None or asked.discount != 1:
            return None
        low, high = (bound * manifest.info.horizon for bound in reward)
        low, high, origin = min(low, 0.0), max(high, 0.0), ", those of the reward times the horizon"
    else:
        low, high = asked.return_bounds
    deviation = (
        release.noise_multiplier * (high - low) / 2 / math.sqrt(MEAN_SHARE) / manifest.private_units
    )
    return (
        f"  today's mean return will be known to ± {1.96 * deviation:.3g} at best, as its bounds "
        f"are {low:g} to {high:g}{origin}: declare the narrowest that you know without the rows "
        "(evaluation.private.return_bounds)"
    )


def _online_line(params: Params) -> str:
    from primorl.paid.arrivals import Arrivals, whose_account

    asked, arrivals = params.online, Arrivals.of(params)
    each = (
        "no guarantee"
        if asked.target_epsilon is None
        else f"ε {at_most(asked.target_epsilon, 4)} for each"
    )
    whose = whose_account(shared=arrivals.shared)
    return (
        f"online: {arrivals.people} users in {len(arrivals.cohorts)} cohorts of {asked.cohort}, "
        f"{each}; {whose}"
    )


def _ledger_lines(
    settings: Settings, bill: Bill, training: Training, status: Status | None
) -> Iterator[str]:
    params, known = bill.params, settings.known
    bill = replace(bill, account=known.account)
    declared = params.privacy.budget
    total = bill.account.total(declared.delta)
    if known.begun and bill.manifest is not None:
        spent = f"ε {at_most(total.epsilon, 4)} spent at δ {at_most(declared.delta)}"
        yield f"{bill.manifest.info.dataset}: {spent}, in {total.charges} charge(s)"
    else:
        yield "nothing was charged to this dataset yet: no ledger was begun"
    if total.charges > 1:
        fixed = at_most(total.epsilon_fixed, 4)
        yield f"  ε {fixed} if all their settings were fixed beforehand, whatever the results"
    changed = status.changed_stages() if status is not None else set()
    if changed & MAKE_DATA:
        yield f"  {UNKNOWN}"
    elif settings.run is not None:
        if known.partitions is not None and bill.account.entries:
            bill = bill.mark_paid(known.partitions, partial(same_questions, changed))
        yield _next_line(bill)
    if bill.budget is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    yield (
        f"  budget: ε {at_most(bill.budget.epsilon, 6)}, left "
        f"{left_of(bill.budget.epsilon, total.epsilon)}"
    )
    if params.dynamics.variant != "private":
        yield (
            f"  a run of variant {params.dynamics.variant} does not fit: it has no guarantee and "
            "fits no budget"
        )
    elif not changed & MAKE_DATA:
        yield from _budget_lines(bill)


def _next_line(bill: Bill) -> str:
    """List the next charges of `dvc repro`, by stage."""
    if not bill.unpaid:
        return "  next `dvc repro`: all of it is paid, nothing is charged"
    words = []
    for each in bill.charges:
        words.append(f"{each.stage} {'0 (paid)' if each.paid else at_most(each.epsilon or 0, 4)}")
    return f"  next `dvc repro` charges ε: {', '.join(words)}"


def _budget_lines(bill: Bill) -> Iterator[str]:
    if not bill.unpaid:
        return
    if bill.fits:
        all_of_it = "" if len(bill.unpaid) == 1 else " all of"
        yield (
            f"  this run fits: with{all_of_it} it ε {at_most(bill.after, 4)} in all (ε compose, "
            "they do not add)"
        )
    else:
        yield f"  what is not paid yet does not fit; ask for a smaller ε in {PARAMS}"
