"""The question that ``primorl plan`` answers: from its options, and from ``params.yaml`` where they are not given."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from primorl.project.errors import PipelineError
from primorl.project.paths import MANIFEST, PARAMS, PARTITIONS, PUBLIC

if TYPE_CHECKING:
    from dp_accounting import dp_event

    from primorl.config.params import Params
    from primorl.privacy.accounting.epsilon import Relation, Spent, Training
    from primorl.setup.fitting import Fit
    from primorl.setup.public_checks import Objections
    from primorl.trajectories.storage.manifest import Manifest
    from primorl.trajectories.storage.rows import UnitRows

MOST_ROUNDS = 1_000_000
_NUMBERS: dict[str, tuple[type, Callable[[Any], bool], str]] = {
    "sampling_probability": (float, lambda q: 0 < q <= 1, "a number above 0, at most 1"),
    "noise_multiplier": (float, lambda z: 1e-6 <= z <= 1e6, "a number from 1e-06 to 1e+06"),  # what dp-accounting can
    "rounds": (int, lambda t: 1 <= t <= MOST_ROUNDS, f"a whole number from 1 to {MOST_ROUNDS}"),
    "delta": (float, lambda d: 0 < d < 1, "a number above 0 and below 1"),
    "target_epsilon": (float, lambda e: 0 < e < math.inf, "a number above 0"),
    "units": (int, lambda k: k >= 1, "a whole number from 1"),
}
_MOST_QUERIES = 8


@dataclass(frozen=True)
class Options:
    """The words of the command line; None where an option was not given. Numbers are read in `Settings.given`."""

    sampling_probability: str | None
    noise_multiplier: str | None
    rounds: str | None
    delta: str | None
    queries: str | None
    target_epsilon: str | None
    units: str | None
    solve: str | None


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


class Settings:
    """The options, and ``params.yaml`` for those that were not given.

    Args:
        options: of the command line.
        params: choices in the place of those of ``params.yaml``; None: those.
    """

    def __init__(self, options: Options, params: "Params | None" = None) -> None:
        self.options = options
        self._given = params

    @cached_property
    def params(self) -> "Params | None":
        """The project's choices; None where there is no ``params.yaml``."""
        from primorl.config.params import load

        return self._given or (load(PARAMS) if PARAMS.exists() else None)

    @cached_property
    def fit(self) -> "tuple[Params, Fit] | None":
        """The project's choices fitted to the data, and what is to be expected of them; None: no data are here.

        They are fitted to a target ε that an option gives, but where the noise is that of ``params.yaml``.
        """
        from primorl.setup.fitting import fitted

        params, manifest, target = self.params, self.manifest, self.given("target_epsilon")
        if params is None or manifest is None or manifest.info.dataset != params.dataset or not PUBLIC.is_dir():
            return None
        if target is not None and self.options.solve != "rounds":
            params = replace(params, privacy=replace(params.privacy, target_epsilon=target, noise_multiplier=None))
        return fitted(params, manifest, self.public)

    @cached_property
    def manifest(self) -> "Manifest | None":
        """The manifest of the partitioned dataset; None before there is one."""
        from primorl.trajectories.storage.manifest import Manifest

        file = MANIFEST
        return Manifest.load(file) if file.exists() else None

    @cached_property
    def public(self) -> "UnitRows":
        """The public split; for where there is one."""
        from primorl.trajectories.storage.rows import UnitRows

        return UnitRows.open(PUBLIC)

    @cached_property
    def objections(self) -> "Objections":
        """What the public split says against the run; for `is_a_run`."""
        from primorl.setup.public_checks import objections

        assert self.params is not None
        assert self.manifest is not None
        return objections(self.params, self.manifest, self.public)

    def given(self, name: str) -> Any:
        """The number of an option, or None if it was not given.

        Raises:
            PipelineError: if the word is not a number, or out of range.
        """
        word = getattr(self.options, name)
        if word is None:
            return None
        kind, fits, allowed = _NUMBERS[name]
        try:
            number = kind(word)
        except ValueError:
            number = None
        if number is None or not fits(number):
            raise PipelineError(f"{_option(name)}: found {word[:40]!r}; allowed: {allowed}")
        return number

    def needed(self, name: str) -> Any:
        """The number of an option, or of its key in ``params.yaml``.

        Raises:
            PipelineError: if neither gives one.
        """
        number = self.given(name)
        if number is None and self.params is None:
            raise PipelineError(f"{_option(name)}: not given, and there is no {PARAMS} here to take it from; give it")
        if number is None:
            number = self.in_use(name)
        if number is None:
            raise PipelineError(f"{_option(name)}: not given, and privacy.{name} in {PARAMS} is null; give it")
        return number

    def in_use(self, name: str) -> Any:
        """The number of a key in ``params.yaml``'s block ``privacy``, or what is fitted in its place.

        Raises:
            PipelineError: if it is to be fitted, and there are no data.
        """
        params = self.params
        assert params is not None
        if f"privacy.{name}" in params.unfitted:
            if self.fit is None:
                raise PipelineError(
                    f"{PARTITIONS}: not there yet; run `dvc repro partition`, for privacy.{name} in {PARAMS} is fitted "
                    f"to the data; or give {_option(name)}"
                )
            params = self.fit[0]
        return getattr(params.privacy, name)

    def queries(self) -> tuple[float, ...]:
        """Noise multipliers of the queries before the rounds.

        Raises:
            PipelineError: if the option holds anything but such numbers.
        """
        word, (_, fits, allowed) = self.options.queries, _NUMBERS["noise_multiplier"]
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
                f"--queries: found {word[:40]!r}; allowed: none, or up to {_MOST_QUERIES} numbers with commas between "
                f"them, each {allowed}"
            )
        return numbers

    @property
    def as_it_stands(self) -> bool:
        """Whether the noise is that of ``params.yaml``, and not one that an option gives or asks to solve for."""
        given = (self.given("noise_multiplier"), self.given("target_epsilon"), self.options.solve)
        return self.params is not None and given == (None, None, None)

    @property
    def no_guarantee(self) -> bool:
        """Whether the noise is that of ``params.yaml``, and its variant gives no guarantee."""
        return self.as_it_stands and self.params is not None and self.params.dynamics.variant != "private"

    @property
    def is_a_run(self) -> bool:
        """Whether the question is about the private run that ``params.yaml`` describes, on the data that are here."""
        options = asdict(self.options) | {"units": None}
        here = self.params is not None and self.manifest is not None and (PARTITIONS / "public").is_dir()
        return here and set(options.values()) == {None} and not self.no_guarantee

    def units(self) -> int | None:
        """The number K of private units; None where it is unknown."""
        number: int | None = self.given("units")
        if number is None and self.manifest is not None:
            number = self.manifest.private_units
        return number


@dataclass(frozen=True)
class Asked:
    """The mechanism in question, complete: what had to be solved for is in place."""

    sampling_probability: float
    noise_multiplier: float
    rounds: int
    delta: float
    queries: tuple[float, ...]

    def spent(self, relation: "Relation") -> "Spent":
        """Its cost."""
        return self._accounted().spent(self.delta, relation)

    @property
    def event(self) -> "dp_event.DpEvent":
        """The event that the accountant composes."""
        return self._accounted().event

    def _accounted(self) -> "Training":
        from primorl.privacy.accounting.epsilon import Training

        return Training(self.sampling_probability, self.noise_multiplier, self.rounds, self.queries)


def asked_for(settings: Settings) -> Asked:
    """The mechanism that the options ask about.

    Raises:
        PipelineError: if options contradict each other, one is missing or wrong, the target cannot be met, or training
            would refuse the settings.
    """
    solve, numbers = settings.options.solve, {name: settings.given(name) for name in _NUMBERS}
    if settings.is_a_run:
        return _of_training(settings)
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
            f"--noise-multiplier, --target-epsilon: neither is given, and there is no {PARAMS} here; give one"
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


def _of_training(settings: Settings) -> Asked:
    """The mechanism that training would run, or the refusal that training would print."""
    from primorl.setup.next_charges import check_clone
    from primorl.setup.planning import check_choices, make_plan

    params, manifest = settings.params, settings.manifest
    assert params is not None
    assert manifest is not None
    check_choices(params, manifest, settings.public)
    check_clone(params, manifest)
    if settings.fit is None and params.unfitted:
        raise PipelineError(
            f"{PARAMS}: dataset: found {params.dataset}, to which settings are to be fitted, and {PARTITIONS} holds "
            f"{manifest.info.dataset}; run `dvc repro partition`"
        )
    plan = make_plan(params if settings.fit is None else settings.fit[0], manifest)
    queries = tuple(query.noise_multiplier for query in plan.queries)
    return Asked(plan.sampling_probability, plan.noise_multiplier, plan.rounds, plan.delta, queries)


def _multiplier_in_use(settings: Settings) -> float:
    """The noise multiplier of ``params.yaml``, given or solved for."""
    privacy = None if settings.params is None else settings.params.privacy
    if privacy is None or privacy.target_epsilon is None:
        return float(settings.needed("noise_multiplier"))
    return _multiplier_for(
        privacy.target_epsilon,
        privacy.delta,
        settings.in_use("sampling_probability"),
        settings.in_use("rounds"),
        settings.queries(),
    )


def _multiplier_for(target: float, delta: float, probability: float, rounds: int, queries: tuple[float, ...]) -> float:
    from primorl.privacy.accounting.solving import solve_noise_multiplier

    try:
        return solve_noise_multiplier(target, delta, probability, rounds, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or lower sampling probability or rounds"
        ) from None


def _rounds_for(target: float, delta: float, probability: float, multiplier: float, queries: tuple[float, ...]) -> int:
    from primorl.privacy.accounting.solving import solve_rounds

    try:
        return solve_rounds(target, delta, probability, multiplier, queries)
    except ValueError as impossible:
        raise PipelineError(
            f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or the noise multiplier"
        ) from None
