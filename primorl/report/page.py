"""The page itself: facts and figures in one HTML file that fetches nothing. Its words are in the template."""

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

import primorl
from primorl.base.files import finite
from primorl.evaluate.wording import ADVICE, account, discounted, gain, gain_note, guarantee, plural, value
from primorl.privacy.accounting.rounding import at_least, at_most, left_of
from primorl.release.card import meaning, people, practice, success
from primorl.report.facts import Facts
from primorl.report.figures import figures

_LIBRARY = ("plotly", "package_data/plotly.min.js")


def page(facts: Facts) -> str:
    """The report as HTML. Scripts and styles are inside, and a policy in its head forbids to fetch anything."""
    drawn, summary, errors = figures(facts), facts.summary, facts.model_error
    # ε and δ of everything that the page counts, or of the policy where no bound holds for all
    leading = facts.released if facts.released["private"] else summary
    # what holds only for settings that were fixed beforehand stands among the numbers for experts
    spent = {**summary, "spent_on_dataset": {**summary["spent_on_dataset"], "epsilon_fixed": None}}
    answers = summary.get("private_evaluation") or ()
    return _template().render(
        facts=facts,
        summary=summary,
        statement=facts.statement,
        training=facts.training,
        units=plural(facts.statement.unit),
        leading=leading["epsilon"],
        verdict=guarantee({**summary, "epsilon": leading["epsilon"], "delta": leading["delta"], "void": facts.void}),
        success=success(facts.released) if facts.sound else None,
        spent=account(spent),
        today=next((each for each in answers if each["of"] == "behaviour"), None),
        advice=ADVICE,
        gain=gain,
        gain_note=gain_note,
        gamma=discounted(facts.discount),
        worst=max(errors, key=lambda name: math.inf if math.isnan(errors[name]) else errors[name], default=None),
        meaning=meaning(facts.released, facts.counted),
        practice=practice(summary, answers, facts.discount),
        people=people(summary, facts.policy, facts.declared),
        figures=drawn,
        specs=Markup(_script({name: figure.spec for name, figure in drawn.items()})),
        library=Markup(_library()),
        version=primorl.__version__,
    )


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
    made = Environment(
        loader=PackageLoader("primorl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters |= {"at_most": at_most, "at_least": at_least}
    made.globals |= {"left_of": left_of, "with_interval": value}
    return made.get_template("report.html.j2")
