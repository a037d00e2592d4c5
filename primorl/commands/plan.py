"""``primorl plan``."""

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primorl.project.errors import PipelineError

if TYPE_CHECKING:
    from dp_accounting import dp_event

    from primorl.config.params import Params
    from primorl.privacy.accounting.epsilon import Relation, Spent, Training
    from primorl.trajectories.storage.manifest import Manifest

HELP = "what a mechanism costs: ε now, the noise or the rounds for a target ε, and the frontier between them"
EXAMPLES = """examples:
  primorl plan                                       what params.yaml costs, what was spent and what is left
  primorl plan --target-epsilon 1                    the noise multiplier for ε 1, all else as in params.yaml
  primorl plan --target-epsilon 1 --solve rounds     as many rounds as ε 1 pays for
  primorl plan --json --sampling-probability 0.01 --noise-multiplier 2 --rounds 400 --delta 1e-5
  primorl plan --frontier --figure frontier.png      noise against compute at one ε, as a table and a figure

What is not given is taken from params.yaml in this folder, also the queries that privacy.statistics asks before the
rounds: ε is that of all together. Nothing is spent and no private row is read.
"""
_PARAMS = Path("params.yaml")
_PARTITIONS = Path("data/partitions")
_MOST_ROUNDS = 1_000_000
_NUMBERS: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "sampling_probability": (float, lambda q: 0 < q <= 1, "a number above 0, at most 1"),
    "noise_multiplier": (float, lambda z: 1e-6 <= z <= 1e6, "a number from 1e-06 to 1e+06"),  # what dp-accounting can
    "rounds": (int, lambda t: 1 <= t <= _MOST_ROUNDS, f"a whole number from 1 to {_MOST_ROUNDS}"),
    "delta": (float, lambda d: 0 < d < 1, "a number above 0 and below 1"),
    "target_epsilon": (float, lambda e: 0 < e < math.inf, "a number above 0"),
    "units": (int, lambda k: k >= 1, "a whole number from 1"),
}
_MOST_QUERIES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    # Numbers are read in `run`, so that a wrong one is one line that says what is allowed.
    parser.add_argument("--sampling-probability", metavar="Q", help="with which each unit joins a round")
    parser.add_argument("--noise-multiplier", metavar="Z", help="noise over clipping norm")
    parser.add_argument("--rounds", metavar="T")
    parser.add_argument("--delta", metavar="D")
    parser.add_argument("--queries", metavar="Z,Z", help="noise multipliers of queries before the rounds, or none")
    parser.add_argument("--target-epsilon", metavar="E", help="solve for what spends it, by PLD")
    parser.add_argument("--solve", choices=("noise-multiplier", "rounds"), help="which (the noise multiplier)")
    parser.add_argument("--frontier", action="store_true", help="solve over sampling probabilities and rounds")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="with --frontier: draw it, as a PNG")
    parser.add_argument("--units", metavar="K", help="private units (those of data/partitions/manifest.json)")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")


def run(arguments: argparse.Namespace) -> int:
    """Do it; return the exit status."""
    settings = Settings(arguments)
    if arguments.frontier:
        _show_frontier(settings)
        return 0
    if arguments.figure is not None:
        raise PipelineError("--figure: found without --frontier, which it draws; give both or neither")
    asked = _asked(settings)
    if arguments.json:
        _print_json(_as_json(asked, private=not settings.no_guarantee))
    else:
        for line in _text(settings, asked):
            print(line)
    return 0


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class Settings:
    """What the command line says, and where it says nothing, ``params.yaml``."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments

    @cached_property
    def params(self) -> "Params | None":
        """The project's choices; None where there is no ``params.yaml``."""
        from primorl.config.params import load

        return load(_PARAMS) if _PARAMS.exists() else None

    @cached_property
    def manifest(self) -> "Manifest | None":
        """The manifest of the partitioned dataset; None before there is one."""
        from primorl.trajectories.storage.manifest import Manifest

        file = _PARTITIONS / "manifest.json"
        return Manifest.load(file) if file.exists() else None

    def given(self, name: str) -> Any:
        """The number of an option, or None where it was not given.

        Raises:
            PipelineError: it is no number, or out of range.
        """
        word = getattr(self.arguments, name)
        if word is None:
            return None
        kind, fits, allowed = _NUMBERS[name]
        try:
            number = kind(word)
        except ValueError:
            number = None
        if number is None or not fits(number):
            raise PipelineError(f"{_option(name)}: found {word!r}; allowed: {allowed}")
        return number

    def needed(self, name: str) -> Any:
        """The number of an option, or of its key in ``params.yaml``.

        Raises:
            PipelineError: neither gives one.
        """
        number = self.given(name)
        if number is None and self.params is None:
            raise PipelineError(f"{_option(name)}: not given, and there is no {_PARAMS} here to take it from; give it")
        if number is None:
            number = getattr(self.params.privacy, name)  # type: ignore[union-attr]
        if number is None:
            raise PipelineError(f"{_option(name)}: not given, and privacy.{name} in {_PARAMS} is null; give it")
        return number

    def queries(self) -> tuple[float, ...]:
        """Noise multipliers of the queries that are asked before the rounds.

        Raises:
            PipelineError: the option holds something else than such numbers.
        """
        word, (_, fits, allowed) = self.arguments.queries, _NUMBERS["noise_multiplier"]
        if word is None:
            asked = None if self.params is None else self.params.privacy.statistics
            count = 0 if asked is None else (asked.normaliser == "private") + asked.starts
            return (asked.noise_multiplier,) * count if asked is not None else ()
        try:
            numbers = () if word == "none" else tuple(map(float, word.split(",")))
        except ValueError:
            numbers = (math.nan,)
        if not all(map(fits, numbers)) or len(numbers) > _MOST_QUERIES:
            raise PipelineError(
                f"--queries: found {word!r}; allowed: none, or up to {_MOST_QUERIES} numbers with commas between them, "
                f"each {allowed}"
            )
        return numbers

    @property
    def as_it_stands(self) -> bool:
        """Whether it is asked what ``params.yaml`` does, and not what some other noise would do."""
        given = (self.given("noise_multiplier"), self.given("target_epsilon"), self.arguments.solve)
        return self.params is not None and given == (None, None, None)

    @property
    def no_guarantee(self) -> bool:
        """Whether what ``params.yaml`` does is of a variant that promises nothing."""
        return self.as_it_stands and self.params is not None and self.params.dynamics.variant != "private"

    def units(self) -> int | None:
        """K, where it is known."""
        number: int | None = self.given("units")
        if number is None and self.manifest is not None:
            number = self.manifest.private_units
        return number


@dataclass(frozen=True)
class Asked:
    """The mechanism that is asked about, with what was to be solved for in place."""

    sampling_probability: float
    noise_multiplier: float
    rounds: int
    delta: float
    queries: tuple[float, ...]

    def spent(self, relation: "Relation") -> "Spent":
        """What it costs."""
        return self._accounted().spent(self.delta, relation)

    @property
    def event(self) -> "dp_event.DpEvent":
        """It, as the accountant is told."""
        return self._accounted().event

    def _accounted(self) -> "Training":
        from primorl.privacy.accounting.epsilon import Training

        return Training(self.sampling_probability, self.noise_multiplier, self.rounds, self.queries)


def _asked(settings: Settings) -> Asked:
    """Put together what is asked about.

    Raises:
        PipelineError: options contradict each other, one is missing or wrong, or the target cannot be met.
    """
    solve, numbers = settings.arguments.solve, {name: settings.given(name) for name in _NUMBERS}
    multiplier = numbers["noise_multiplier"]
    if solve == "rounds" and numbers["rounds"] is not None:
        raise PipelineError("--rounds: found with --solve rounds, which looks for them; leave one of the two out")
    target_given = solve is not None or numbers["target_epsilon"] is not None
    if target_given and solve != "rounds" and multiplier is not None:
        raise PipelineError(
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or look for the rounds "
            "with --solve rounds"
        )
    if settings.params is None and multiplier is None and not target_given:
        raise PipelineError(
            f"--noise-multiplier, --target-epsilon: neither is given, and there is no {_PARAMS} here; give one"
        )
    probability, delta = settings.needed("sampling_probability"), settings.needed("delta")
    queries = settings.queries()
    if solve == "rounds":
        target, multiplier = settings.needed("target_epsilon"), multiplier or _multiplier_in_use(settings)
        rounds = _rounds_for(target, delta, probability, multiplier, queries)
        return Asked(probability, multiplier, rounds, delta, queries)
    rounds = settings.needed("rounds")
    if settings.params is not None and not target_given:
        multiplier = multiplier or settings.params.privacy.noise_multiplier
    if multiplier is None:
        multiplier = _multiplier_for(settings.needed("target_epsilon"), delta, probability, rounds, queries)
    return Asked(probability, multiplier, rounds, delta, queries)


def _multiplier_in_use(settings: Settings) -> float:
    """The one in ``params.yaml``, or that its target asks for."""
    privacy = None if settings.params is None else settings.params.privacy
    if privacy is None or privacy.target_epsilon is None:
        return float(settings.needed("noise_multiplier"))
    return _multiplier_for(
        privacy.target_epsilon, privacy.delta, privacy.sampling_probability, privacy.rounds, settings.queries()
    )


def _multiplier_for(target: float, delta: float, probability: float, rounds: int, queries: tuple[float, ...]) -> float:
    from primorl.privacy.accounting.solving import solve_noise_multiplier

    try:
        return solve_noise_multiplier(target, delta, probability, rounds, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:g}: {impossible}; raise it, or lower sampling probability or rounds"
        ) from None


def _rounds_for(target: float, delta: float, probability: float, multiplier: float, queries: tuple[float, ...]) -> int:
    from primorl.privacy.accounting.solving import solve_rounds

    try:
        return solve_rounds(target, delta, probability, multiplier, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:g}: {impossible}; raise it, or the noise multiplier"
        ) from None


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


def _shown(epsilon: float) -> str:
    from primorl.privacy.accounting.rounding import at_most

    return at_most(epsilon, digits=4)


def _text(settings: Settings, asked: Asked) -> Iterator[str]:
    spent, replaced = asked.spent("add_or_remove_one"), asked.spent("replace_one")
    yield (
        f"sampling probability {asked.sampling_probability:g}, noise multiplier {asked.noise_multiplier:g}, "
        f"{asked.rounds} rounds, at δ {asked.delta:g}:"
    )
    if asked.queries:
        multipliers = ", ".join(f"{multiplier:g}" for multiplier in asked.queries)
        yield f"  after {len(asked.queries)} queries of all units (privacy.statistics), noise multiplier {multipliers}"
    yield f"  ε {_shown(spent.epsilon_pld)} if one unit is added or removed ({_shown(spent.epsilon_rdp)} by RDP)"
    yield f"  ε {_shown(replaced.epsilon_pld)} if one unit is replaced by another"
    units = settings.units()
    if units is not None:
        cohort = asked.sampling_probability * units
        yield f"  of {units} units about {cohort:.4g} join a round, {cohort * asked.rounds:.4g} local trainings in all"
        yield f"  noise per coordinate of the mean update: {asked.noise_multiplier / cohort:.3g} of the clipping norm"
        if asked.delta >= 1 / units:
            yield f"  warning: δ is not below 1/{units}: to publish a whole unit would pass; choose a smaller one"
    params = settings.params
    if params is not None and params.dynamics.variant != "private":
        yield f"  {_PARAMS} has dynamics.variant {params.dynamics.variant}: a run of it has no guarantee at all"
    if params is not None and settings.manifest is not None and (_PARTITIONS / "units.bin").exists():
        yield from _left(params, settings.manifest, asked)


def _left(params: "Params", manifest: "Manifest", asked: Asked) -> Iterator[str]:
    """What was spent on the dataset, and what of its budget is left for a run like this."""
    from primorl.privacy.accounting.epsilon import compose
    from primorl.privacy.accounting.events import event_from_json
    from primorl.privacy.ledger.budget_advice import multiplier_that_fits, rounds_that_fit
    from primorl.privacy.ledger.ledger import Version
    from primorl.setup.accounts import begun_ledger

    ledger = begun_ledger(params)
    if ledger is None:
        yield "nothing was charged to this dataset yet: no ledger was begun"
        return
    members = (_PARTITIONS / "units.bin").read_bytes()
    version = Version(manifest.info.dataset_fingerprint, manifest.info.unit, manifest.private_units, members)
    budget = params.privacy.budget
    with closing(ledger):
        earlier = [event_from_json(charge.event) for charge in ledger.sharing(version)]
    spent = compose(earlier, budget.delta)
    epsilon = _shown(spent.epsilon_pld)
    yield f"{manifest.info.dataset}: ε {epsilon} spent at δ {budget.delta:g}, in {len(earlier)} charge(s)"
    limit = budget.epsilon
    if limit is None:
        yield "  budget: none (privacy.budget.epsilon is null)"
        return
    yield f"  budget: ε {limit:g}, left {max(0.0, limit - spent.epsilon_pld):.4g}"

    def fits(event: "dp_event.DpEvent") -> bool:
        return compose([*earlier, event], budget.delta).epsilon_pld <= limit

    if params.dynamics.variant != "private":
        yield f"  a run of variant {params.dynamics.variant} does not fit: it has no guarantee and fits no budget"
        return
    total = compose([*earlier, asked.event], budget.delta).epsilon_pld
    if total <= limit:
        yield f"  this run fits: with it ε {_shown(total)} in all (ε compose, they do not add)"
    else:
        multiplier = multiplier_that_fits(asked.event, fits)
        yield "  this run does not fit" + (
            f"; with noise multiplier {multiplier:g} its {asked.rounds} rounds would" if multiplier is not None else ""
        )
    most = asked.rounds
    while most < _MOST_ROUNDS and fits(replace(asked, rounds=most).event):
        most *= 4
    rounds = rounds_that_fit(replace(asked, rounds=most).event, fits)
    yield f"  rounds left with its noise multiplier: {'none' if rounds is None else rounds}"


def _show_frontier(settings: Settings) -> None:
    """Solve over the grid; print the rows, draw them if asked."""
    from primorl.commands import frontier
    from primorl.privacy.accounting.epsilon import RELATION_NAME
    from primorl.project.progress import progress_bar

    if settings.arguments.solve is not None or settings.given("noise_multiplier") is not None:
        raise PipelineError(
            "--frontier: found with --solve or --noise-multiplier; it solves for the noise multiplier at every point; "
            "leave them out"
        )
    units = settings.units()
    if units is None:
        raise PipelineError(
            f"--units: not given, and there is no {_PARTITIONS / 'manifest.json'} here to take it from; give it"
        )
    target, delta, rounds = (settings.needed(name) for name in ("target_epsilon", "delta", "rounds"))
    probability = settings.given("sampling_probability")
    if probability is None and settings.params is not None:
        probability = settings.params.privacy.sampling_probability
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
        raise PipelineError(f"--target-epsilon: found {target:g}, which no point of the frontier reaches; raise it")
    title = f"ε {target:g} at δ {delta:g}, one of {units} units added or removed"
    if settings.arguments.json:
        shared = {"target_epsilon": target, "delta": delta, "units": units, "neighboring_relation": RELATION_NAME}
        _print_json([asdict(point) | shared for point in points])
    else:
        print(f"{title}\n\n{frontier.table(points)}")
    if settings.arguments.figure is not None:
        frontier.draw(settings.arguments.figure, points, title)


def _transitions(settings: Settings) -> int | None:
    """The most transitions that one local training reads."""
    if settings.params is None or settings.manifest is None:
        return None
    dynamics, horizon = settings.params.dynamics, settings.manifest.info.horizon
    most = [number for number in (dynamics.max_transitions_per_unit, horizon) if number is not None]
    return min(most) * dynamics.local_epochs if most else None
