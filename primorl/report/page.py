"""The page itself: facts and figures in one HTML file that fetches nothing."""

import json
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

import primorl
from primorl.evaluation.wording import ADVICE, account, discounted, guarantee, plural, value, worth
from primorl.privacy.accounting.rounding import at_least, at_most
from primorl.project.files import finite
from primorl.release.card import meaning, success
from primorl.release.card_people import columns, practice, responsible
from primorl.report.facts import Facts
from primorl.report.figures import figures

_LIBRARY = ("plotly", "package_data/plotly.min.js")


def page(facts: Facts) -> str:
    """The report as HTML. Scripts and styles are inside, and a policy in its head forbids to fetch anything."""
    drawn = figures(facts)
    summary, statement = facts.summary, facts.statement
    return _template().render(
        title=_title(summary),
        verdict=guarantee({**summary, **_leading(facts), "void": facts.void}),
        sound=facts.sound,
        success=success(facts.released) if facts.sound else None,
        unit=statement.unit,
        tiles=_tiles(facts),
        verdict_on_model=summary.get("model_verdict"),
        counted=facts.counted,
        unbounded=_unbounded(facts),
        meaning=meaning(facts.released, plural(statement.unit), facts.counted),
        assumptions=statement.public_assumptions,
        practice=practice(summary, summary.get("private_evaluation", ()), facts.discount),
        people=(responsible(facts.declared, summary["dataset"]), *(columns(facts.policy) if facts.policy else ())),
        figures=drawn,
        specs=Markup(_script({name: figure.spec for name, figure in drawn.items()})),
        numbers=_numbers(facts),
        library=Markup(_library()),
        version=primorl.__version__,
        alone=facts.spending is None and facts.others is None,
        mlflow=facts.mlflow,
    )


def _title(summary: Mapping[str, Any]) -> str:
    seeds = summary.get("seeds") or [summary["seed"]]
    listed = ", ".join(map(str, seeds))
    return f"{summary['dataset']}: {summary['variant']}, seed{'s' if len(seeds) > 1 else ''} {listed}"


def _leading(facts: Facts) -> dict[str, Any]:
    """ε and δ that the page leads with: of everything that it counts, or of the policy where no bound holds for all."""
    source = facts.released if facts.released["private"] else facts.summary
    return {"epsilon": source["epsilon"], "delta": source["delta"]}


def _unbounded(facts: Facts) -> str | None:
    """Why no bound stands in the header of a run that has a guarantee; None: there is one, or the run has none."""
    if not facts.statement.private or facts.released["private"]:
        return None
    return (
        f"This is the guarantee of the policy alone. No bound holds for {facts.counted} together: a result without a "
        "guarantee, or one that another ledger paid for, is among them or is shown below."
    )


def _tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """The answers to the three questions that everybody asks first: heading, answer, and a line below it."""
    summary, unit = facts.summary, facts.statement.unit
    leading = _leading(facts)["epsilon"]
    private = f"ε = {at_most(leading)}" if summary["private"] else "No protection"
    more = summary["private"] and leading != summary["epsilon"]
    alone = f"the policy alone: ε = {at_most(summary['epsilon'])}; " if more else ""
    # what holds only for settings that were fixed beforehand stands among the numbers for experts
    spent = {**summary, "spent_on_dataset": {**summary["spent_on_dataset"], "epsilon_fixed": None}}
    private += " — VOID" if facts.void else ""
    tiles = [
        (
            "What was protected, how strongly?",
            private,
            f"{summary['units']:,} {plural(unit)}; {alone}in all {account(spent)}",
        )
    ]
    if summary["return_mean"] is not None:
        tiles.append(
            ("What is the policy worth?", value(summary["return_mean"], summary["return_ci95"]), _today(facts))
        )
    elif (asked := worth(summary.get("private_evaluation") or ())) is not None:
        said = f"by {asked['estimator']}{discounted(facts.discount)}; {_today(facts)}"
        tiles.append(("What is the policy worth?", value(asked["value"], asked["ci95"]), said))
    elif summary.get("model_value") is not None:
        said = f"in the released model, not measured in the world; {_today(facts)}"
        tiles.append(("What is the policy worth?", f"{summary['model_value']:.4g}", said))
    else:
        tiles.append(("What is the policy worth?", "Not measured", "nobody was asked, and there is no simulator"))
    advice, verdict = summary.get("recommendation"), summary.get("model_verdict")
    if advice is not None:
        tiles.append(("What should be done?", ADVICE[advice["answer"]], advice["reason"]))
    if verdict is not None:
        said, _, because = verdict.partition(": ")
        tiles.append(("Can the model be believed?", said, f"by the private units{because and f': {because}'}"))
    elif advice is None:
        errors = facts.model_error
        worst = max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default=None)
        said = "Not known" if worst is None else f"{max(0.0, 1 - errors[worst]):.1%} explained"
        where = "nobody is public" if worst is None else f"of what varies in {worst}, the worst, on public data"
        tiles.append(("Can the model be believed?", said, where))
    return tiles


def _today(facts: Facts) -> str:
    summary = facts.summary
    practice = [each for each in summary.get("private_evaluation", ()) if each["of"] == "behaviour"]
    if practice:
        return f"today's practice: {value(practice[0]['value'], practice[0]['ci95'])}{discounted(facts.discount)}"
    if summary.get("public_return_mean") is not None:
        mean = value(summary["public_return_mean"], summary["public_return_ci95"])
        return f"today's practice: {mean}, {summary['public_trajectories']} public trajectories"
    return "today's practice is not known"


def _numbers(facts: Facts) -> list[tuple[str, str]]:
    """For experts: what the statement says, with names of its keys."""
    statement, summary = facts.training, facts.summary
    fixed = summary["spent_on_dataset"]["epsilon_fixed"]
    rows: dict[str, Any] = {
        "neighbouring relation": statement.neighboring_relation,
        "accountant": f"{statement.accountant.name} {statement.accountant.version}",
        "ε by RDP": None if statement.epsilon_rdp is None else at_most(statement.epsilon_rdp, 6),
        "sampling probability q": statement.sampling_probability and at_most(statement.sampling_probability, 6),
        "noise multiplier z": statement.noise_multiplier and at_least(statement.noise_multiplier, 6),
        "clipping norm C": statement.clipping_norm,
        "rounds T": statement.rounds,
        "queries before the rounds": ", ".join(query.what for query in statement.queries) or "none",
        "dataset fingerprint (keyed)": statement.dataset_fingerprint,
        "charge": statement.charge,
        "ε of all charges, if all settings were fixed beforehand": None if fixed is None else at_most(fixed),
        "policy's weights (SHA-256)": summary.get("policy_sha256"),
    }
    return [(name, f"{found:.6g}" if isinstance(found, float) else str(found)) for name, found in rows.items() if found]


def _script(specs: dict[str, dict[str, Any]]) -> str:
    """JSON that cannot end the script it stands in. A number that is not finite is no point: JSON has none."""
    return json.dumps(_finite(specs), allow_nan=False).replace("<", "\\u003c")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return finite(value) if isinstance(value, float) else value


@cache
def _library() -> str:
    package, name = _LIBRARY
    return files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Template:
    return Environment(
        loader=PackageLoader("primorl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template("report.html.j2")
