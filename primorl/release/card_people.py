"""The parts of a card for people who must decide: who answers for it, its columns, and today's practice beside it.

What a release's card says is also what the report says.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from primorl.evaluation.private.results import MEAN_RETURN
from primorl.evaluation.wording import discounted, source
from primorl.release.card import Row, Section

TEXTS = {"owner": "owner", "purpose": "purpose", "contact": "contact", "licence": "licence of the data"}
"""What people may declare, by its key in the dataset's file, and what a card calls it."""
_GENERATED_NAME = re.compile(r"(observation_|action_)?\d+")
_MOST_COLUMNS = 60


def responsible(declared: Mapping[str, Any] | None, dataset: str) -> Section:
    """Owner, purpose, contact and licence, in the words of people.

    Args:
        declared: the texts by key of `TEXTS`; None, or a missing key: not stated.
        dataset: its name.
    """
    said = declared or {}
    file = f"datasets/{dataset}.yaml"
    missing = [key for key in TEXTS if not said.get(key)]
    points = [f"Written by people (card, in {file}); no program checks it."]
    if missing:
        keys = ", ".join(f"card.{key}" for key in missing)
        points.append(f"To state what is missing, fill in {keys} in {file}. That charges nothing.")
    rows = tuple((name, said.get(key) or "not stated") for key, name in TEXTS.items())
    return Section("Who answers for it, and what for", tuple(points), rows)


def columns(policy: Mapping[str, Any]) -> tuple[Section, ...]:
    """The names of what is observed and done, each with its public range; nothing where the data name none.

    Args:
        policy: ``config.json`` of the policy.
    """
    seen, done = policy.get("observation_names") or (), policy.get("action_names") or ()
    if unnamed((*seen, *done)):
        return ()
    lows, highs = (policy.get(f"observation_{side}") or [None] * len(seen) for side in ("low", "high"))
    rows = [(name, _observed(low, high)) for name, low, high in zip(seen, lows, highs, strict=False)]
    rows += [(name, "an action" if policy["discrete_actions"] else "set by the policy") for name in done]
    if len(rows) > _MOST_COLUMNS:
        rows = [*rows[:_MOST_COLUMNS], (f"and {len(rows) - _MOST_COLUMNS} more", "see config.json of the policy")]
    point = "The columns of the log, in the order in which the policy takes them. Ranges are declared public."
    return (Section("Columns", (point,), tuple(rows)),)


def unnamed(names: Sequence[str]) -> bool:
    """Whether all names were generated, such as ``3`` or ``observation_3``: the data do not name their columns."""
    return all(map(_GENERATED_NAME.fullmatch, names))


def _observed(low: float | None, high: float | None) -> str:
    return "observed" if low is None or high is None else f"observed, {low:g} to {high:g}"


def practice(
    summary: Mapping[str, Any],
    estimates: Sequence[Mapping[str, Any]] = (),
    discount: float = 1.0,
    *,
    cloned: bool = False,
) -> Section:
    """What the policy is worth beside what people get today, and the data that each figure rests on.

    Args:
        summary: ``evaluation.json`` or ``metrics/summary.json``.
        estimates: answers of estimators; empty: nothing was asked. Those that were free are left out.
        discount: γ of the answers.
        cloned: whether the policy is the clone of today's practice, of which answers about the policy do not speak.
    """
    asked = [each for each in estimates if each["what"] == MEAN_RETURN and each["epsilon"] is not None]
    today, policy = [*_public(summary)], [*_tried(summary)]
    today += [("today's practice", each) for each in asked if each["of"] == "behaviour"]
    policy += [("the policy", each) for each in asked if each["of"] == "policy" and not cloned]
    rows = [_row(name, found, discount) for name, found in (*today, *policy)]
    return Section("Beside today's practice", tuple(_read(summary, today, policy, discount)), tuple(rows))


def _public(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if summary.get("public_return_mean") is not None:
        count = summary["public_trajectories"]
        named = f"today's practice, in the {count:,} public trajectories"
        yield named, {"value": summary["public_return_mean"], "ci95": summary["public_return_ci95"]}


def _tried(summary: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if summary["return_mean"] is not None:
        found = {"value": summary["return_mean"], "ci95": summary["return_ci95"]}
        yield f"the policy, in {summary['episodes']:,} simulated episodes", found
    elif summary.get("model_value") is not None:
        named = "the policy, in the released model (the range is that of its networks, no interval)"
        yield named, {"value": summary["model_value"], "range": summary["model_value_range"]}


def _row(name: str, found: Mapping[str, Any], discount: float) -> Row:
    said = f"{found['value']:.4g}"
    if (ends := found.get("range") or found.get("ci95")) is not None:
        kind = "from" if "range" in found else "95% interval"
        said += f", {kind} {ends[0]:.4g} to {ends[1]:.4g}"
    return (f"{name}, by {source(found)}{discounted(discount)}" if "estimator" in found else name), said


def _read(
    summary: Mapping[str, Any],
    today: Sequence[tuple[str, Mapping[str, Any]]],
    policy: Sequence[tuple[str, Mapping[str, Any]]],
    discount: float,
) -> Iterator[str]:
    """How the rows are to be read, one sentence a point."""
    if not today:
        yield (
            "Today's practice is not known: fewer than two trajectories are public, and the private units were not "
            "asked (evaluation.private.estimators in params.yaml, charged)."
        )
        return
    if summary.get("public_return_mean") is not None:
        yield (
            "The public trajectories are records as they are. They speak for all only if being public has nothing to "
            "do with how people fare."
        )
    if any("estimator" in found for _, found in (*today, *policy)):
        yield "An answer with an ε comes from the private units, through noise."
        if discount != 1:
            yield f"These answers are discounted by γ = {discount:g} a step; other figures are not."
    if summary["return_mean"] is not None:
        yield (
            "The policy was measured in a simulator, today's practice in records: they compare as far as the "
            "simulator is like the world of the records."
        )
    elif not any("estimator" in found for _, found in policy):
        yield (
            "Nobody was treated by the policy. Its figures come from the model alone, so they do not show that it is "
            "better."
        )
    now, then = today[-1][1].get("ci95"), policy[0][1].get("ci95") if policy else None
    if summary["return_mean"] is None or now is None or then is None:
        return
    if discount != 1 and ("estimator" in today[-1][1]) != ("estimator" in policy[0][1]):
        yield "One of the two intervals is discounted and the other is not: they do not compare."
    elif then[0] > now[1]:
        yield "The policy's interval lies above today's."
    elif then[1] < now[0]:
        yield "The policy's interval lies below today's."
    else:
        yield "The two intervals overlap: that one is better than the other is not shown."
