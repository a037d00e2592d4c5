"""The question that ``primorl plan`` answers: from its options, and from ``params.yaml`` where they are not given."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

from primorl.config.params import Params, load
from primorl.privacy.accounting.epsilon import Training
from primorl.privacy.accounting.solving import solve_noise_multiplier, solve_rounds
from primorl.project.errors import PipelineError
from primorl.project.paths import MANIFEST, PARAMS, PARTITIONS, PUBLIC
from primorl.setup.fitting import Fit, fitted
from primorl.setup.model_work import check_choices, make_plan
from primorl.setup.next_charges import check_clone
from primorl.setup.public_checks import Objections, objections
from primorl.trajectories.storage.manifest import Manifest
from primorl.trajectories.storage.rows import UnitStore

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
    units: int | None = None
    solve: str | None = None

    @property
    def any_but_units(self) -> bool:
        """Whether any option was given that changes the mechanism."""
        return any(getattr(self, each.name) is not None for each in fields(self) if each.name != "units")


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
    def public(self) -> UnitStore:
        """The public split; for where there is one."""
        return UnitStore.open(PUBLIC)

    @cached_property
    def fit(self) -> tuple[Params, Fit] | None:
        """The project's choices fitted to the data, and what is to be expected of them; None: no data are here.

        They are fitted to a target ε that an option gives, but where the noise is that of ``params.yaml``.
        """
        params, manifest, target = self.params, self.manifest, self.options.target_epsilon
        if params is None or manifest is None or manifest.info.dataset != params.dataset or not PUBLIC.is_dir():
            return None
        if target is not None and self.options.solve != "rounds":
            params = replace(params, privacy=replace(params.privacy, target_epsilon=target, noise_multiplier=None))
        return fitted(params, manifest, self.public)

    @cached_property
    def objections(self) -> Objections:
        """What the public split says against the run; for `is_a_run`."""
        assert self.params is not None
        assert self.manifest is not None
        return objections(self.params, self.manifest, self.public)

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
            raise PipelineError(f"{option}: not given, and there is no {PARAMS} here to take it from; give it")
        if number is None:
            number = self._in_params(name)
        if number is None:
            raise PipelineError(f"{option}: not given, and privacy.{name} in {PARAMS} is null; give it")
        return number

    def _in_params(self, name: str) -> Any:
        """Return the number of a key in ``params.yaml``'s block ``privacy``, or the fitted one in its place."""
        params = self.params
        assert params is not None
        if f"privacy.{name}" in params.unfitted:
            if self.fit is None:
                raise PipelineError(
                    f"{PARTITIONS}: not there yet; run `dvc repro partition`, for privacy.{name} in {PARAMS} is fitted "
                    f"to the data; or give --{name.replace('_', '-')}"
                )
            params = self.fit[0]
        return getattr(params.privacy, name)

    @property
    def queries(self) -> tuple[float, ...]:
        """Noise multipliers of the queries before the rounds."""
        if self.options.queries is not None:
            return self.options.queries
        asked = None if self.params is None else self.params.privacy.statistics
        if asked is None:
            return ()
        return (asked.noise_multiplier,) * ((asked.normaliser == "private") + asked.starts)

    @property
    def no_guarantee(self) -> bool:
        """Whether the noise is that of ``params.yaml``, and its variant gives no guarantee."""
        options = self.options
        asked = (options.noise_multiplier, options.target_epsilon, options.solve) != (None, None, None)
        return self.params is not None and not asked and self.params.dynamics.variant != "private"

    @property
    def is_a_run(self) -> bool:
        """Whether the question is about the private run that ``params.yaml`` describes, on the data that are here."""
        here = self.params is not None and self.manifest is not None and PUBLIC.is_dir()
        return here and not self.options.any_but_units and not self.no_guarantee

    @property
    def units(self) -> int | None:
        """The number K of private units; None where it is unknown."""
        if self.options.units is not None or self.manifest is None:
            return self.options.units
        return self.manifest.private_units


def asked_for(settings: Settings) -> tuple[Training, float]:
    """Complete the mechanism that the options ask about: solve for what is looked for.

    Returns:
        The training run, and δ.

    Raises:
        PipelineError: options contradict each other, one is missing, the target cannot be met, or training would refuse
            the settings.
    """
    if settings.is_a_run:
        return _as_trained(settings)
    options = settings.options
    target_given = options.solve is not None or options.target_epsilon is not None
    if options.solve == "rounds":
        if options.rounds is not None:
            raise PipelineError("--rounds: found with --solve rounds, which looks for them; leave one of the two out")
    elif target_given and options.noise_multiplier is not None:
        raise PipelineError(
            "--noise-multiplier: found where the one for a target is looked for; leave it out, or look for the rounds "
            "with --solve rounds"
        )
    if settings.params is None and options.noise_multiplier is None and not target_given:
        raise PipelineError(
            f"--noise-multiplier, --target-epsilon: neither is given, and there is no {PARAMS} here; give one"
        )
    q, delta, queries = settings.needed("sampling_probability"), settings.needed("delta"), settings.queries
    if options.solve == "rounds":
        target = settings.needed("target_epsilon")
        z = options.noise_multiplier or _noise_in_params(settings)
        rounds = _solved("the noise multiplier", target, lambda: solve_rounds(target, delta, q, z, queries))
        return Training(q, z, rounds, queries), delta
    rounds = settings.needed("rounds")
    multiplier = options.noise_multiplier
    if multiplier is None and settings.params is not None and not target_given:
        multiplier = settings.params.privacy.noise_multiplier
    if multiplier is None:
        multiplier = _noise_for(settings.needed("target_epsilon"), delta, q, rounds, queries)
    return Training(q, multiplier, rounds, queries), delta


def _as_trained(settings: Settings) -> tuple[Training, float]:
    """Return the mechanism that training would run, or raise what training would refuse it with."""
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
    return Training(plan.sampling_probability, plan.noise_multiplier, plan.rounds, queries), plan.delta


def _noise_in_params(settings: Settings) -> float:
    """Return the noise multiplier of ``params.yaml``, given or solved for."""
    privacy = None if settings.params is None else settings.params.privacy
    if privacy is None or privacy.target_epsilon is None:
        return float(settings.needed("noise_multiplier"))
    q, rounds = settings._in_params("sampling_probability"), settings._in_params("rounds")
    return _noise_for(privacy.target_epsilon, privacy.delta, q, rounds, settings.queries)


def _noise_for(target: float, delta: float, q: float, rounds: int, queries: tuple[float, ...]) -> float:
    return _solved(
        "lower sampling probability or rounds",
        target,
        lambda: solve_noise_multiplier(target, delta, q, rounds, queries),
    )


def _solved(otherwise: str, target: float, solve: Callable[[], T]) -> T:
    try:
        return solve()
    except ValueError as impossible:
        raise PipelineError(f"--target-epsilon: found {target:.12g}: {impossible}; raise it, or {otherwise}") from None
