"""Settings of a private training fitted to public facts of the data, and whether they can learn. Reads no private byte.

With a public split, candidates are rehearsed on it with the noise that they would have (`primorl.engine.rehearsal`) and
the one with the lowest loss is taken. Without one, a rule decides: the noise of all rounds over what all rounds can
move, s = z √d / (q K √T), must be small (docs/fitted-plan.md).

A fit is kept in ``.primorl/fits``: the same settings on the same data are fitted once, so that neither another version
of this module nor another machine changes what was paid for. Only a dry run imports torch.
"""

import hashlib
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from primorl.base.errors import PipelineError
from primorl.base.files import home, waited_for
from primorl.base.paths import FITS, MODEL
from primorl.base.records import read_record, record, write_record
from primorl.base.reporting import progress_bar
from primorl.config.params import Params, plain
from primorl.data.storage.rows import UnitStore
from primorl.data.storage.schema import Manifest
from primorl.engine import heads
from primorl.engine.settings import LEAST_OF_A_DRY_RUN, LEAST_UNITS
from primorl.model.architecture import CanLearn
from primorl.model.termination import LEARNED
from primorl.paid.accounts import digest
from primorl.paid.model import (
    TRAIN_MODEL,
    TRAINING_KEYS,
    PrivateStage,
    architecture,
    check_choices,
    make_plan,
    model_identity,
    training_setup,
)
from primorl.privacy.mechanism.plan import Plan

if TYPE_CHECKING:
    from primorl.engine.policy_network import Network
    from primorl.engine.rehearsal import DryRun, Outcome
    from primorl.engine.setup import TrainingSetup
    from primorl.paid.compute import Place

HIDDEN = ((32, 32), (64, 64))
LEARNING_RATES = (0.0001, 0.0003, 0.001, 0.003)
ROUNDS = (20, 60)
"""Candidates of a dry run: small steps from weights that the public split made."""
_COMMON: dict[str, Any] = {
    "dynamics.ensemble_size": 3,
    "dynamics.log_variance_bounds": [-5.0, 3.0],
    "dynamics.server_momentum": 0.6,
    "dynamics.server_averaging": 0.9,
}
_SMALL = ((64, 64), (32, 32), (32,), (16,))
_FROM_SCRATCH: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": 0.01,
    "privacy.rounds": 100,
    "privacy.clipping_norm": 1.0,
}
"""Where no public split tells more; the network is the largest of `_SMALL` that the noise leaves room for."""
_LARGE_STEPS, _NOISE_OF_CLIP = 0.03, 0.1
"""Learning rate of local steps where there is little noise, and s C, of which C is made: at most 1."""
_FROM_PUBLIC: dict[str, Any] = {"dynamics.start": "public", "dynamics.beta_nll": 1.0}
_FROM_FEW: dict[str, Any] = _FROM_PUBLIC | {
    "dynamics.learning_rate": 0.0003,
    "privacy.rounds": 20,
    "privacy.clipping_norm": 0.02,
}
"""Where public units make first weights and are too few for a dry run: a few small steps from there."""
_MOST_TRANSITIONS = 6e6  # that all rounds of a training read: some twenty seconds on two cores
_ROWS = 64  # of one unit and round
_LINEAR: dict[str, Any] = {
    "dynamics.start": "random",
    "dynamics.hidden": [],
    "dynamics.beta_nll": 0.0,
    "dynamics.learning_rate": heads.RATE,
    "dynamics.ensemble_size": 5,
    "dynamics.log_variance_bounds": [-12.0, 4.0],
    "dynamics.server_momentum": heads.MOMENTUM,
    "dynamics.server_averaging": heads.AVERAGING,
    "dynamics.max_transitions_per_unit": heads.ROWS,
    "privacy.rounds": heads.ROUNDS,
    "privacy.clipping_norm": heads.NORM,
}
"""Settings of linear heads; their degree is the largest whose noise is small enough."""
_BLURRED_YES, _BLURRED_NO = 0.35, 1.0
"""Noise of the variances that scale the features, as a share of them: up to which heads learn, and from which not."""
_LOST_NO = 1.0
"""Share of a target's variance that the noise adds to predictions, from which heads do not learn (`heads.LOST_YES`)."""
_MOST_ROWS_OF_HEADS = 1.2e8  # that all rounds read
_SHARES = 0.05, 0.5
_NOISE_YES, _NOISE_SOME, _NOISE_NO = 0.2, 0.37, 0.55
"""s up to which runs learned, up to which most did, and from which none did."""
_LEARNED_YES, _LEARNED_NO = 0.9, 0.6
"""Of what can be learned at all, where the rounds begin with random weights."""
_ADDED_YES, _ADDED_NO = 0.5, 0.2
"""Of what the rounds could add, without noise, to a model of the public split."""
_SAME, _SIGMAS = 0.02, 2.0
"""What the rounds could add is nothing up to this share of what can be learned, or so many standard errors."""
_HELPS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)

_INSTEAD = (
    "the policy can be had without a charge by privacy.train_on: public (ε 0 for the model), and the budget is better "
    "spent on asking people how good the policy is"
)


@record
class Fit:
    """Fitted settings and their expected success: a file in ``.primorl/fits``."""

    FORMAT: ClassVar[int] = 1

    values: Annotated[dict[str, Any], "Fitted settings, by dotted key of params.yaml."]
    answer: Annotated[CanLearn, "Whether these settings can learn."]
    noise: Annotated[
        float, "s, the noise norm of all rounds over the most that all rounds can move."
    ]
    learned: Annotated[
        float | None, "Share of what could be learned that is; `null`: there was no dry run."
    ]
    start: Annotated[
        float | None, "Loss of the weights that the rounds begin with, in the dry run."
    ]
    loss: Annotated[float | None, "Loss at the end of the dry run; `null`: there was none."]
    constant: Annotated[float | None, "Loss of a constant prediction in the dry run."]
    helps: Annotated[
        float | None, "So many times the people, or ε, would do; `null`: not needed, or not enough."
    ]
    best: Annotated[
        float | None,
        "Least loss of a dry run that begins with a model of the public split; `null`: there was none.",
    ] = None
    blurred: Annotated[
        float | None,
        "Noise of the variances that scale features, as a share; `null`: nobody is asked for them.",
    ] = None
    lost: Annotated[
        float | None,
        "Variance that the noise adds to predictions of linear heads, in variances of the target.",
    ] = None

    @property
    def reason(self) -> str:
        """The verdict in one line."""
        if self.answer == "not_needed":
            return f"the private rounds are not needed: {self._added}; {_INSTEAD}"
        words = {"yes": "can learn", "marginal": "may learn little", "no": "cannot learn"}[
            self.answer
        ]
        if self.best is not None:
            why = f"{self._added} (yes from {_ADDED_YES:.0%} of it, no below {_ADDED_NO:.0%})"
        elif self.lost is not None:
            why = (
                f"the noise in what linear heads predict has {self.lost:.2g} of the variance of the target "
                f"(yes to {heads.LOST_YES:g}, no from {_LOST_NO:g}), before small weights "
                "are shrunk; whether polynomials fit these data is known after training"
            )
            if self.blurred is not None:
                why += (
                    f"; the variances that scale their features have a noise of {self.blurred:.0%} (yes to "
                    f"{_BLURRED_YES:.0%}, no from {_BLURRED_NO:.0%})"
                )
        elif self.learned is None:
            why = f"the noise is {self.noise:.2f} of what the rounds can move (yes to {_NOISE_YES}, no from {_NOISE_NO})"
        else:
            why = (
                f"in a dry run on the public split they keep {max(self.learned, 0.0):.0%} of what can be learned "
                f"(yes from {_LEARNED_YES:.0%}, no below {_LEARNED_NO:.0%})"
            )
        help_ = ""
        if self.answer != "yes":
            help_ = "; more people or a larger ε alone would not do"
            if self.helps is not None:
                network = f", or a network with {round(self.helps**2, 1):g} times fewer weights"
                help_ = f"; {self.helps:g} times the people, or the ε, would do{network if self.lost is None else ''}"
        if self.best is not None and self.answer == "no":
            help_ += f"; {_INSTEAD}"
        return f"these settings {words}: {why}{help_}"

    @property
    def _added(self) -> str:
        start, loss, best = (
            math.nan if each is None else each for each in (self.start, self.loss, self.best)
        )
        gain = start - loss
        would = f"would add {gain:.2g}" if gain >= 0 else f"would do harm, {-gain:.2g},"
        return (
            f"in a dry run the public split alone reaches a loss of {start:.4g} (a constant {self.constant:.4g}), "
            f"to which the private rounds {would} of the {start - best:.2g} that they could without noise"
        )


_UNJUDGED = Fit(
    values={},
    answer="yes",
    noise=0.0,
    learned=None,
    start=None,
    loss=None,
    constant=None,
    helps=None,
)


def fitted(params: Params, manifest: Manifest, public: UnitStore) -> tuple[Params, Fit]:
    """Fit the settings that are to be fitted, and judge all of them.

    Returns:
        The choices with fitted values in place, and the fit.

    Raises:
        PipelineError: the choices fit neither each other nor the data, or no noise multiplier reaches the target ε.
    """
    if params.dynamics.variant == "mopo":  # trains without a mechanism: only its sizes matter
        values = _common(manifest, public) | _FROM_SCRATCH | {"dynamics.hidden": list(HIDDEN[-1])}
        return params.fitted(_wanted(params, values)), _UNJUDGED
    if params.dynamics.train_anyway and not params.unfitted & TRAINING_KEYS:
        rule = _of_heads if params.dynamics.model == "linear" else _by_rule
        return params, rule(
            params, manifest, public
        )  # nothing is to be fitted, nor would a dry run stop anything
    file = home() / FITS / f"{_digest(params, manifest, public)}.json"
    if not file.exists():
        with waited_for(file.with_suffix(".lock")):
            if not file.exists():  # experiments that begin together need one fit
                rehearsed = (
                    public.units >= LEAST_OF_A_DRY_RUN
                    and params.privacy.statistics.normaliser == "public"
                )
                by = (
                    _of_heads
                    if params.dynamics.model == "linear"
                    else _by_dry_runs
                    if rehearsed
                    else _by_rule
                )
                write_record(file, by(params, manifest, public))
    kept = read_record(file, Fit, "remove it: it is made anew")
    return params.fitted(kept.values), kept


def check_verdict(params: Params, fit: Fit) -> None:
    """Refuse to pay for a private training that cannot learn, unless params.yaml says to train anyway.

    Raises:
        PipelineError: the verdict is no.
    """
    if (
        fit.answer == "no"
        and params.dynamics.variant == "private"
        and not params.dynamics.train_anyway
    ):
        raise PipelineError(
            f"params.yaml: {params.target_key}: {fit.reason}. Nothing was charged; to train all the same, set "
            "dynamics.train_anyway: true"
        )


def say_fit(stage: str, chosen: Params, fit: Fit) -> None:
    """Print the fitted settings and their expected success."""
    if fit.values:
        said = ", ".join(f"{key} {value}" for key, value in sorted(fit.values.items()))
        print(f"{stage}: fitted to public facts of the data: {said}", file=sys.stderr)
    if chosen.dynamics.variant == "private":
        print(f"{stage}: {fit.reason}", file=sys.stderr)


def noise_share(plan: Plan, shape: "Network") -> float:
    """The noise norm of all rounds over the most that all rounds can move: s = z √d / (q K √T)."""
    return plan.noise_multiplier * math.sqrt(shape.parameters / plan.rounds) / plan.expected_cohort


def _by_dry_runs(params: Params, manifest: Manifest, public: UnitStore) -> Fit:
    """The candidate with the lowest loss in a dry run."""
    from primorl.engine.rehearsal import DryRun

    dry_run = DryRun(public, flag=manifest.info.termination == LEARNED)
    candidates = _candidates(params, manifest, public)
    best: tuple[Outcome, _Candidate] | None = None
    with progress_bar(len(candidates), "dry runs on the public split", "run") as bar:
        for values in candidates:
            tried = _clipped(params, manifest, public, values, dry_run)
            if tried is not None:
                outcome = tried.rehearse()
                if best is None or outcome.in_all < best[0].in_all:
                    best = outcome, tried
            bar.update()
    if best is None:
        return _by_rule(params, manifest, public)
    outcome, chosen = best
    free = chosen.rehearse(noise=0.0)
    least = min(outcome.loss, outcome.start, free.loss)
    from_public = params.fitted(chosen.values).dynamics.start == "public"
    before = outcome.start if from_public else outcome.constant

    def learned(loss: float) -> float:
        return (before - loss) / (before - least) if before > least else 0.0

    share, (yes, no) = (
        learned(outcome.loss),
        (_ADDED_YES, _ADDED_NO) if from_public else (_LEARNED_YES, _LEARNED_NO),
    )
    same = max(_SAME * (outcome.constant - least), _SIGMAS * free.doubt)
    answer: CanLearn = "yes" if share >= yes else "marginal" if share >= no else "no"
    if outcome.loss > outcome.start or outcome.loss >= outcome.constant:
        answer = "no"
    elif from_public and before - least <= same:
        answer = "not_needed"
    enough = (f for f in _HELPS if learned(chosen.rehearse(noise=1 / f).loss) >= yes)
    return Fit(
        values=chosen.values,
        answer=answer,
        noise=noise_share(chosen.setup.plan, chosen.setup.architecture),
        learned=share,
        start=outcome.start,
        loss=outcome.loss,
        constant=outcome.constant,
        helps=None if answer in ("yes", "not_needed") else next(enough, None),
        best=least if from_public else None,
    )


def _by_rule(params: Params, manifest: Manifest, public: UnitStore) -> Fit:
    """The largest network that the noise leaves room for."""
    few = (
        LEAST_UNITS <= public.units < LEAST_OF_A_DRY_RUN
        and params.privacy.statistics.normaliser != "private"
    )
    few = few and ("dynamics.start" in params.unfitted or params.dynamics.start == "public")
    common = _common(manifest, public) | (_FROM_FEW if few else _FROM_SCRATCH)
    values, noise = {}, math.inf
    for hidden in _SMALL if "dynamics.hidden" in params.unfitted else (params.dynamics.hidden,):
        values = _wanted(params, common | {"dynamics.hidden": list(hidden)})
        tried = params.fitted(values)
        check_choices(tried, manifest, public)
        noise = noise_share(make_plan(tried, manifest), architecture(tried, manifest))
        if noise <= _NOISE_SOME:
            break
    if not few:
        steps = {
            "privacy.clipping_norm": float(f"{_NOISE_OF_CLIP / max(noise, _NOISE_OF_CLIP):.4g}")
        }
        if noise <= _NOISE_YES:
            steps["dynamics.learning_rate"] = _LARGE_STEPS
        values |= _wanted(params, steps)
    answer: CanLearn = "yes" if noise <= _NOISE_YES else "marginal" if noise < _NOISE_NO else "no"
    helps = None if answer == "yes" else math.ceil(10 * noise / _NOISE_YES) / 10
    return replace(_UNJUDGED, values=values, answer=answer, noise=noise, helps=helps)


def _of_heads(params: Params, manifest: Manifest, public: UnitStore) -> Fit:
    """Fit linear heads: features of the largest degree at which the noise is small enough, or else of degree 1.

    Degree 3 makes members disagree away from the data, which holds policies back: it is tried where no environment can
    tell a wrong policy from a good one.
    """
    everybody = min(1.0, _MOST_ROWS_OF_HEADS / (manifest.private_units * heads.ROWS * heads.ROUNDS))
    common = _LINEAR | {"privacy.sampling_probability": float(f"{everybody:.2g}")}
    values, lost, blurred = {}, math.inf, None
    spaces = manifest.info.spaces
    sizes = spaces.observation_size + spaces.action_size, spaces.one_hot
    degrees = heads.degrees(*sizes, cubes=params.chosen.environment is None)
    for degree in degrees if "dynamics.degree" in params.unfitted else (params.dynamics.degree,):
        values = _wanted(params, common | {"dynamics.degree": degree})
        tried = params.fitted(values)
        check_choices(tried, manifest, public)
        plan = make_plan(tried, manifest)
        shape, blurred = architecture(tried, manifest), heads.blurred(plan)
        lost = heads.lost_to_noise(plan, tried.dynamics, tried.dynamics.learning_rate, shape)
        if heads.affords(lost, shape):
            break
    blur = blurred or 0.0
    answer: CanLearn = "marginal" if lost < _LOST_NO and blur < _BLURRED_NO else "no"
    if lost <= heads.LOST_YES and blur <= _BLURRED_YES:
        answer = "yes"
    helps = (
        None
        if answer == "yes"
        else math.ceil(10 * max(math.sqrt(lost / heads.LOST_YES), blur / _BLURRED_YES)) / 10
    )
    return replace(_UNJUDGED, values=values, answer=answer, helps=helps, lost=lost, blurred=blurred)


def _candidates(params: Params, manifest: Manifest, public: UnitStore) -> list[dict[str, Any]]:
    """Values of everything that is to be fitted but the clip."""
    common = _common(manifest, public) | _FROM_PUBLIC
    found: list[dict[str, Any]] = []
    for hidden, rate, rounds in itertools.product(HIDDEN, LEARNING_RATES, ROUNDS):
        tried = {
            "dynamics.hidden": list(hidden),
            "dynamics.learning_rate": rate,
            "privacy.rounds": rounds,
        }
        values = _wanted(params, common | tried)
        if values not in found:  # what params.yaml decides does not vary
            found.append(values)
    return found


@dataclass(frozen=True)
class _Candidate:
    """Values for the settings to be fitted, their training, and a dry run of it at a share of the noise."""

    values: dict[str, Any]
    setup: "TrainingSetup"
    rehearse: "Callable[..., Outcome]"


def _clipped(
    params: Params, manifest: Manifest, public: UnitStore, values: dict[str, Any], dry_run: "DryRun"
) -> _Candidate | None:
    """The values with a clip at the usual norm of an update; None: updates diverge."""
    tried = params.fitted(values | _wanted(params, {"privacy.clipping_norm": 1.0}))
    from_public = tried.dynamics.start == "public"
    setup = training_setup(tried, manifest, public, start=False)
    if "privacy.clipping_norm" in params.unfitted:
        norm = dry_run.usual_norm(setup, from_public=from_public)
        if math.isinf(norm):
            return None
        values = values | {"privacy.clipping_norm": float(f"{norm:.4g}")}
        setup = training_setup(params.fitted(values), manifest, public, start=False)
    return _Candidate(values, setup, partial(dry_run.outcome, setup, from_public=from_public))


def _common(manifest: Manifest, public: UnitStore) -> dict[str, Any]:
    """Constants, and how many units and rows a round reads: large cohorts, as far as a minute's work goes."""
    usual = min(_ROWS, math.ceil(public.size / public.units)) if public.units else _ROWS
    share = _MOST_TRANSITIONS / (manifest.private_units * usual * max(ROUNDS))
    return _COMMON | {
        "dynamics.max_transitions_per_unit": _ROWS,
        "privacy.sampling_probability": float(f"{min(max(share, _SHARES[0]), _SHARES[1]):.2g}"),
    }


def _wanted(params: Params, values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in params.unfitted}


def _digest(params: Params, manifest: Manifest, public: UnitStore) -> str:
    """Of everything that a fit depends on but code."""
    unfitted, info = params.unfitted, manifest.info
    blocks = {name: plain(getattr(params, name)) for name in ("privacy", "dynamics")}
    flat = {
        f"{name}.{key}": value for name, block in blocks.items() for key, value in block.items()
    }
    if params.dynamics.model == "network":
        del flat["dynamics.model"], flat["dynamics.degree"]
    rows = hashlib.sha256()
    for part in public.arrays() if public.units else ():
        rows.update(part.tobytes())
    left_out = (
        *unfitted,
        "privacy.budget",
        "privacy.draw",
        "privacy.train_on",
        "dynamics.train_anyway",
    )
    content = {
        "settings": {key: value for key, value in flat.items() if key not in left_out},
        "unfitted": sorted(unfitted & TRAINING_KEYS),
        "seed": params.seed,
        "bounds": plain(params.chosen.bounds),
        "data": [info.dataset, info.dataset_fingerprint, info.horizon, info.termination, info.unit],
        "units": [manifest.private_units, manifest.public_units],
        "public": rows.hexdigest(),
    }
    return digest(content)


def _fitted_setup(
    params: Params, manifest: Manifest, public: UnitStore, place: "Place"
) -> "TrainingSetup":
    return training_setup(fitted(params, manifest, public)[0], manifest, public, place)


MODEL_TRAINING = PrivateStage(
    name=TRAIN_MODEL,
    output=MODEL,
    what="model",
    setup=_fitted_setup,
    identity=model_identity,
    asked=lambda params: params.dynamics.variant != "mopo" and params.privacy.train_on == "private",
    baseline=True,
    diverged=(
        "params.yaml: dynamics: training diverged (weights that are not finite); lower dynamics.learning_rate or "
        "privacy.clipping_norm"
    ),
    must_learn=True,
)
