"""``primorl plan``."""

from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from primorl.commands.folders import given_path
from primorl.commands.plan_settings import MOST_ROUNDS, Asked, Options, Settings, asked_for
from primorl.project.dvc import Status
from primorl.project.errors import PipelineError
from primorl.project.paths import PARAMS, PARTITIONS, UNITS

if TYPE_CHECKING:
    from dp_accounting import dp_event

    from primorl.config.params import Params
    from primorl.privacy.ledger.account import Account
    from primorl.privacy.ledger.ledger import Budget
    from primorl.setup.fitting import Fit
    from primorl.setup.next_charges import PendingCharge
    from primorl.setup.public_checks import Objections
    from primorl.trajectories.storage.manifest import Manifest

_HELP = """Show the ε of a mechanism, or solve for a target ε.

\b
Examples:
  primorl plan                                       what params.yaml costs, what was spent and what is left
  primorl plan --target-epsilon 1                    the noise multiplier for ε 1, all else as in params.yaml
  primorl plan --target-epsilon 1 --solve rounds     as many rounds as ε 1 pays for
  primorl plan --json --sampling-probability 0.01 --noise-multiplier 2 --rounds 400 --delta 1e-5
  primorl plan --frontier --figure frontier.png      noise against compute at one ε, as a table and a figure

Options that are not given are taken from params.yaml, and so are the queries that privacy.statistics asks before the
rounds: ε covers all of them together. Nothing is spent and no private row is read.
"""


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("plan", help=_HELP)(_run)


# Numbers are read in `Settings`, so that a wrong one is one line that says what is allowed.
def _run(
    sampling_probability: Annotated[
        str | None, typer.Option(metavar="Q", help="Probability with which each unit joins a round.")
    ] = None,
    noise_multiplier: Annotated[str | None, typer.Option(metavar="Z", help="Noise over clipping norm.")] = None,
    rounds: Annotated[str | None, typer.Option(metavar="T", help="Number of rounds.")] = None,
    delta: Annotated[str | None, typer.Option(metavar="D", help="δ.")] = None,
    queries: Annotated[
        str | None, typer.Option(metavar="Z,Z", help="Noise multipliers of the queries before the rounds, or none.")
    ] = None,
    target_epsilon: Annotated[
        str | None, typer.Option(metavar="E", help="Solve for the noise or the rounds that spend this ε, by PLD.")
    ] = None,
    solve: Annotated[
        Literal["noise-multiplier", "rounds"] | None,
        typer.Option(metavar="WHAT", help="What to solve for: noise-multiplier (default) or rounds."),
    ] = None,
    frontier: Annotated[bool, typer.Option("--frontier", help="Solve over sampling probabilities and rounds.")] = False,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=given_path, help="With --frontier: draw it, as a PNG.")
    ] = None,
    units: Annotated[
        str | None, typer.Option(metavar="K", help="Private units.  [default: those of data/partitions/manifest.json]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    options = Options(
        sampling_probability=sampling_probability,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        delta=delta,
        queries=queries,
        target_epsilon=target_epsilon,
        units=units,
        solve=solve,
    )
    settings = Settings(options)
    if frontier:
        _show_frontier(settings, as_json=as_json, figure=figure)
        return
    if figure is not None:
        raise PipelineError("--figure: found without --frontier, which it draws; give both or neither")
    if as_json:
        _print_json(_as_json(asked_for(settings), private=not settings.no_guarantee) | _fit_as_json(settings))
        return
    with Status() if settings.is_a_run else nullcontext() as status:
        for line in _text(settings, asked_for(settings), status):
            print(line)


def _print_json(content: object) -> None:
    import json

    print(json.dumps(content, indent=2, allow_nan=False))


def _as_json(asked: Asked, *, private: bool) -> dict[str, Any]:
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.project.files import finite

    spent, replaced = asked.spent(RELATION_NAME), asked.spent("replace_one")
    numbers = (spent.epsilon_pld, spent.epsilon_rdp, replaced.epsilon_pld)
    names = ("epsilon_pld", "epsilon_rdp", "epsilon_replace_one")
    return {
        "private": private,
        **{name: finite(number) if private else None for name, number in zip(names, numbers, strict=True)},
        **asdict(asked),
        "neighboring_relation": RELATION_NAME,
    }


def _fit_as_json(settings: Settings) -> dict[str, Any]:
    """What was fitted and what is to be expected, of the run that params.yaml describes."""
    if not settings.is_a_run or settings.fit is None:
        return {}
    _, fit = settings.fit
    stops = settings.objections.stops
    answer, why = ("no", "; ".join(stops)) if stops else (fit.answer, fit.reason)
    return {"can_learn": answer, "why": why, "fitted": fit.values}


def _shown(epsilon: float) -> str:
    from primorl.privacy.accounting.rounding import at_most

    return at_most(epsilon, 4)


def _text(settings: Settings, asked: Asked, status: Status | None = None) -> Iterator[str]:
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.privacy.accounting.rounding import at_least, at_most

    spent, replaced = asked.spent(RELATION_NAME), asked.spent("replace_one")
    yield (
        f"sampling probability {at_most(asked.sampling_probability, 6)}, noise multiplier "
        f"{at_least(asked.noise_multiplier, 6)}, {asked.rounds} rounds, at δ {at_most(asked.delta, 6)}:"
    )
    if asked.queries:
        multipliers = ", ".join(at_least(multiplier, 6) for multiplier in asked.queries)
        yield f"  after {len(asked.queries)} queries of all units (privacy.statistics), noise multiplier {multipliers}"
    yield f"  ε {_shown(spent.epsilon_pld)} if one unit is zeroed out ({_shown(spent.epsilon_rdp)} by RDP)"
    yield f"  ε {_shown(replaced.epsilon_pld)} if one unit is replaced by another"
    units = settings.units()
    if units is not None:
        cohort = asked.sampling_probability * units
        yield f"  of {units} units about {cohort:.4g} join a round, {cohort * asked.rounds:.4g} local trainings in all"
        noise = at_least(asked.noise_multiplier / cohort)
        yield f"  noise per coordinate of the mean update: {noise} of the clipping norm"
        if asked.delta >= 1 / units:
            yield f"  warning: δ is not below 1/{units}: to publish a whole unit would pass; choose a smaller one"
    if settings.is_a_run and settings.fit is not None:
        yield from _fit_lines(settings.fit[1], settings.objections)
        if settings.manifest is not None and settings.manifest.public_units == 0:
            yield from _without_public(settings.manifest)
    params = settings.params
    if params is not None and params.dynamics.variant != "private":
        yield f"  {PARAMS} has dynamics.variant {params.dynamics.variant}: a run of it has no guarantee at all"
    if params is not None:
        from primorl.setup.next_charges import beside_model

        others = beside_model(params, spent.epsilon_pld, settings.manifest)
        if others:
            yield _with_others(params, asked, others)
        if settings.manifest is not None and UNITS.exists():
            yield from _left(settings, settings.manifest, asked, others, status)
        if params.online.asked:
            yield _online_line(params)


def _online_line(params: "Params") -> str:
    """What the stage `online` charges, and to whom."""
    from primorl.privacy.accounting.rounding import at_most
    from primorl.setup.arrivals import Arrivals, whose_account

    asked, arrivals = params.online, Arrivals.of(params)
    each = "no guarantee" if asked.target_epsilon is None else f"ε {at_most(asked.target_epsilon, 4)} for each"
    whose = whose_account(shared=arrivals.shared)
    return f"online: {arrivals.people} users in {len(arrivals.cohorts)} cohorts of {asked.cohort}, {each}; {whose}"


def _fit_lines(fit: "Fit", found: "Objections") -> Iterator[str]:
    """What was fitted, and what is to be expected of it."""
    if fit.values:
        said = ", ".join(f"{key} {value}" for key, value in sorted(fit.values.items()))
        yield f"  fitted to public facts of the data: {said}"
    for stop in found.stops:
        yield f"  can it learn? no: {stop}"
    if not found.stops:
        yield f"  can it learn? {fit.answer}: {fit.reason}"
    for warning in found.warnings:
        yield f"  warning: {warning}"


def _without_public(manifest: "Manifest") -> Iterator[str]:
    """What values in the model count, where neither a simulator nor a public split tells when recordings end."""
    if manifest.info.environment is None:
        yield (
            "  warning: nobody is public, so nothing tells how long recordings go on; values in the model count every "
            f"step up to the horizon ({manifest.info.horizon}), and lie beyond today's return if most are shorter"
        )


def _with_others(params: "Params", asked: Asked, others: "list[PendingCharge]") -> str:
    """What this run, the clone of the behaviour and the private evaluation of the policy come to together."""
    from primorl.privacy.accounting.rounding import at_most
    from primorl.privacy.ledger.account import total_of

    budget, words, clone = params.privacy.budget, [], params.behaviour.target_epsilon
    if clone is not None:
        words.append(f"a clone of the behaviour ({at_most(clone, 4)})")
    questions = [each for each in others if each.question is not None]
    if questions:
        named = ", ".join(f"{each.question} {at_most(each.epsilon or 0, 4)}" for each in questions)
        words.append(f"the private evaluation of its policy ({named})")
    together = total_of([asked.event, *(each.event for each in others)], budget.delta).epsilon
    line = f"  with {' and '.join(words)}: about ε {_shown(together)} in all"
    beyond = budget.epsilon is not None and together > budget.epsilon
    return f"{line}, which privacy.budget.epsilon {budget.epsilon!r} does not allow" if beyond else line


def _left(
    settings: Settings, manifest: "Manifest", asked: Asked, others: "list[PendingCharge]", status: Status | None
) -> Iterator[str]:
    """What was spent on the dataset, what the next run charges, and whether the budget allows it."""
    from primorl.privacy.accounting.rounding import at_most, left_of
    from primorl.privacy.ledger.account import Account
    from primorl.privacy.ledger.ledger import Budget
    from primorl.setup import model_work
    from primorl.setup.accounts import begun_ledger, check_secret, dataset_version
    from primorl.setup.losses import losses
    from primorl.setup.next_charges import MAKE_DATA, UNKNOWN, PendingCharge, mark_paid, same_questions
    from primorl.setup.partitions import Partitions

    params = settings.params
    assert params is not None
    ledger, account = begun_ledger(params), Account(())
    lost = losses(ledger)
    for loss in lost:
        yield f"warning: {loss.says}, so more may be spent than is known here; `primorl ledger verify` says more"
    declared = params.privacy.budget
    if ledger is None:
        if not lost:
            yield "nothing was charged to this dataset yet: no ledger was begun"
        total = account.total(declared.delta)
    else:
        check_secret(manifest, PARTITIONS)  # under another one the ledger would recognise nobody
        with closing(ledger):
            account = ledger.account(dataset_version(manifest, PARTITIONS))
        total = account.total(declared.delta)
        spent = f"ε {_shown(total.epsilon)} spent at δ {at_most(declared.delta)}"
        yield f"{manifest.info.dataset}: {spent}, in {total.charges} charge(s)"
    if total.charges > 1:
        yield f"  ε {_shown(total.epsilon_fixed)} if all their settings were fixed beforehand, whatever the results"
    charges = [PendingCharge(model_work.STAGE, None, asked.event), *others]
    changed = status.changed_stages() if status is not None else set()
    if changed & MAKE_DATA:
        yield f"  {UNKNOWN}"
    elif settings.is_a_run:
        if account.entries:
            stay = partial(same_questions, changed)
            charges = mark_paid(params, Partitions.open(PARTITIONS), account, charges, questions_stay=stay)
        yield _next_line(charges, asked)
    if declared.epsilon is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    budget = Budget(declared.epsilon, declared.delta)
    yield f"  budget: ε {at_most(budget.epsilon, 6)}, left {left_of(budget.epsilon, total.epsilon)}"
    if params.dynamics.variant != "private":
        yield f"  a run of variant {params.dynamics.variant} does not fit: it has no guarantee and fits no budget"
    elif not changed & MAKE_DATA:
        yield from _fitting(params, account, budget, asked, charges, manifest)


def _next_line(charges: "list[PendingCharge]", asked: Asked) -> str:
    """What `dvc repro` would charge next, by stage."""
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.privacy.accounting.rounding import at_most

    if all(each.paid for each in charges):
        return "  next `dvc repro`: all of it is paid, nothing is charged"
    words = [
        f"{each.stage} "
        + ("0 (paid)" if each.paid else at_most(each.epsilon or asked.spent(RELATION_NAME).epsilon_pld, 4))
        for each in charges
    ]
    return f"  next `dvc repro` charges ε: {', '.join(words)}"


def _fitting(
    params: "Params",
    account: "Account",
    budget: "Budget",
    asked: Asked,
    charges: "list[PendingCharge]",
    manifest: "Manifest",
) -> Iterator[str]:
    """Whether the budget allows what is not paid yet, and what else it allows."""
    from primorl.privacy.ledger.budget_advice import rounds_that_fit
    from primorl.setup.next_charges import still_fitting

    model, *others = charges
    beside = [each for each in others if not each.paid]
    events = [each.event for each in beside]
    wanted = events if model.paid else [model.event, *events]
    if not wanted:
        return
    if account.fits_all(wanted, budget):
        with_it = account.with_events(wanted, budget.delta)
        what = "this run fits: with it" if len(wanted) == 1 else "this run fits: with all of it"
        yield f"  {what} ε {_shown(with_it)} in all (ε compose, they do not add)"
    elif model.paid:
        yield (
            "  what is not paid yet does not fit; ask for a smaller ε (behaviour.target_epsilon or "
            f"evaluation.private.estimators in {PARAMS})"
        )
    else:
        yield f"  this run does not fit; {still_fitting(params, account, model.event, beside, budget, manifest)}"
    if model.paid:
        return

    def fits(event: "dp_event.DpEvent") -> bool:
        return account.fits_all([event, *events], budget)

    most = asked.rounds
    while most < MOST_ROUNDS and fits(replace(asked, rounds=most).event):
        most *= 4
    rounds = rounds_that_fit(replace(asked, rounds=most).event, fits)
    yield f"  rounds left with its noise multiplier: {'none' if rounds is None else rounds}"


def _show_frontier(settings: Settings, *, as_json: bool, figure: Path | None) -> None:
    """Solve over the grid, print the points, and draw them if a figure is wanted."""
    from primorl.commands import frontier
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.privacy.accounting.rounding import at_most
    from primorl.project.progress import progress_bar

    if settings.options.solve is not None or settings.given("noise_multiplier") is not None:
        raise PipelineError(
            "--frontier: found with --solve or --noise-multiplier; it solves for the noise multiplier at every point; "
            "leave them out"
        )
    units = settings.units()
    if units is None:
        raise PipelineError(
            f"--units: not given, and there is no {PARTITIONS / 'manifest.json'} here to take it from; give it"
        )
    target, delta, rounds = (settings.needed(name) for name in ("target_epsilon", "delta", "rounds"))
    probability = settings.given("sampling_probability")
    if probability is None and (known := _as_run(settings)) is not None:
        probability = known.privacy.sampling_probability
    grid = frontier.around(units, probability, rounds)
    with progress_bar(len(grid[0]) * len(grid[1]), "frontier", "point") as bar:
        points = frontier.frontier(
            target,
            delta,
            units,
            grid,
            current=(probability, rounds),
            transitions_per_unit=_transitions(settings),
            queries=settings.queries(),
            on_point=bar.update,
        )
    if all(point.noise_multiplier is None for point in points):
        raise PipelineError(f"--target-epsilon: found {target:.12g}, which no point of the frontier reaches; raise it")
    title = f"ε {at_most(target, 6)} at δ {at_most(delta)}, one of {units} units zeroed out"
    if as_json:
        shared = {"target_epsilon": target, "delta": delta, "units": units, "neighboring_relation": RELATION_NAME}
        _print_json([asdict(point) | shared for point in points])
    else:
        print(f"{title}\n\n{frontier.table(points)}")
    if figure is not None:
        frontier.draw(figure, points, title)


def _as_run(settings: Settings) -> "Params | None":
    """The project's choices, fitted to the data that are here; None: there are none, or what is fitted has no data."""
    if settings.fit is not None:
        return settings.fit[0]
    return None if settings.params is None or settings.params.unfitted else settings.params


def _transitions(settings: Settings) -> int | None:
    """The most transitions that one local training reads."""
    known = _as_run(settings)
    if known is None or settings.manifest is None:
        return None
    dynamics, horizon = known.dynamics, settings.manifest.info.horizon
    most = [number for number in (dynamics.max_transitions_per_unit, horizon) if number is not None]
    return min(most) * dynamics.local_epochs if most else None
