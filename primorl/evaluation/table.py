"""The results of a run as a short table of plain text."""

from typing import Any

from primorl.evaluation.wording import ADVICE, account, guarantee, source, value

_WHOSE = {  # of eight characters at most: the column is no wider
    "behaviour": "today",
    "clone": "clone",
    "policy": "policy",
    "random": "random",
    "zero_action": "zeros",
    "model": "model",
}


def text(summary: dict[str, Any]) -> str:
    """The content of ``metrics/summary.json`` as a short table.

    Raises:
        KeyError: an entry is missing.
    """
    score, seconds = summary["normalized_score"], summary["seconds"]
    rows = [
        ("dataset", f"{summary['dataset']} ({summary['env_id'] or 'no simulator'}), {summary['units']} private units"),
        ("variant", f"{summary['variant']}, {_seeds(summary)}"),
        ("privacy", f"{'of the policy: ' if summary['private'] else ''}{guarantee(summary)}"),
        ("spent", f"{'' if summary['spent_on_dataset']['epsilon'] is None else 'in all: '}{account(summary)}"),
        *_private_answers(summary),
        *_value(summary).items(),
        *_recommendation(summary),
        ("score", ("none declared" if summary["env_id"] else "not measured") if score is None else f"{score:.1f}"),
        (
            "time",
            f"{sum(seconds.values()):.0f} s: " + ", ".join(f"{name} {took:.0f}" for name, took in seconds.items()),
        ),
    ]
    return "\n".join(f"{name:<8} {value}" for name, value in rows)


def _private_answers(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What the private units get today, and would get; empty where nothing was asked."""
    answers = sorted(summary.get("private_evaluation", ()), key=lambda answer: list(_WHOSE).index(answer["of"]))
    said = [f"{value(each['value'], each['ci95'])} by {source(each)}" for each in answers]
    note = {"clone": ", as it would be released"}  # drawn actions in a box may be worth something else
    rows = [(_WHOSE[each["of"]], one + note.get(each["of"], "")) for one, each in zip(said, answers, strict=True)]
    return [*rows, *([("model", summary["model_verdict"])] if "model_verdict" in summary else [])]


def _recommendation(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """What to do with the policy; empty where an environment measured it."""
    found = summary.get("recommendation")
    return [] if found is None else [("advice", f"{ADVICE[found['answer']]}. {found['reason']}")]


def _value(summary: dict[str, Any]) -> dict[str, str]:
    """The return in the environment; without one, the value in the model."""
    if summary["return_mean"] is None:
        low, high = summary["model_value_range"]
        spread = f"[{low:.4g}, {high:.4g}] over the {summary['model_value_members']} members{_over_seeds(summary)}"
        if any(
            (each["of"], each["estimator"]) == ("policy", "model") for each in summary.get("private_evaluation", ())
        ):
            spread += ", in other rollouts than those of `policy` above"
        return {
            "return": "not measured: there is no simulator",
            "value": f"{summary['model_value']:.4g}  {spread}: {summary['model_value_note']}",
        }
    low, high = summary["return_ci95"]
    over = _over_seeds(summary)
    mean = f"{summary['return_mean']:.4g}  95% interval [{low:.4g}, {high:.4g}]"
    rows = {"return": f"{mean}{over}, {summary['episodes']} episodes{' each' if over else ''}"}
    if over:
        rows["seeds"] = "; ".join(_of_seed(each) for each in summary["by_seed"]) + " over episodes"
    return rows


def _of_seed(result: dict[str, Any]) -> str:
    """One seed's return with the interval over its episodes, which is not that over seeds."""
    return f"{result['seed']}: {value(result['return_mean'], result['return_ci95'])}"


def _over_seeds(summary: dict[str, Any]) -> str:
    return f" over {len(summary['seeds'])} seeds" if len(summary.get("seeds", ())) > 1 else ""


def _seeds(summary: dict[str, Any]) -> str:
    seeds = summary.get("seeds", [summary["seed"]])
    return f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}"
