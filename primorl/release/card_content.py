"""What a model card says, for people who are not experts.

Every number comes from ``privacy.json``, ``config.json``, ``evaluation.json``, ``private-evaluation.json`` or the
ledger's statement; ``declared.json`` has the texts of people.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from primorl.evaluation.wording import ADVICE, guarantee, plural
from primorl.privacy.accounting.rounding import at_most
from primorl.release.card import EXACT_EPSILON, Card, Row, Section
from primorl.release.card_answers import answered, counted_clone, expert_rows, included, together
from primorl.release.card_meaning import curve, meaning, profile_row, success
from primorl.release.card_people import columns, practice, responsible, unnamed
from primorl.release.guaranteed import whole


def make_card(
    statement: Mapping[str, Any],
    model: Mapping[str, Any],
    policy: Mapping[str, Any],
    summary: Mapping[str, Any],
    ledger: Mapping[str, Any],
    clone: Mapping[str, Any] | None = None,
    answers: Mapping[str, Any] | None = None,
    declared: Mapping[str, Any] | None = None,
) -> Card:
    """The content of a card, from a release's files.

    Args:
        statement: ``privacy.json`` of the model.
        model: ``config.json`` of the dynamics model.
        policy: ``config.json`` of the policy.
        summary: ``evaluation.json``.
        ledger: ``ledger-statement.json``.
        clone: ``privacy.json`` of the clone of the behaviour; None: none was made.
        answers: ``private-evaluation.json``; None: nothing was asked. What is guaranteed for the bundle counts both.
        declared: ``declared.json``; None: nobody declared anything.
    """
    counted = counted_clone(clone, ledger)
    bundle = whole(statement, counted, answers, ledger["delta"])
    sound = bundle["private"] and not bundle["void"]
    return Card(
        title=f"Model card: {summary['dataset']}",
        verdict=_verdict(bundle, sound, included(counted, answers)),
        sound=sound,
        success=success(bundle) if sound else None,
        curve=curve(bundle) if sound else (),
        sections=(
            *_advice(policy, summary, asked=answers is not None),
            _what(statement, model, policy),
            responsible(declared, summary["dataset"]),
            *columns(policy),
            _protected(statement),
            meaning(bundle, plural(statement["unit"])),
            Section("What was taken as public", (*statement["public_assumptions"],) or ("Nothing was stated.",)),
            _spent(ledger, answers),
            Section(
                "What is void",
                tuple(f"The statement must not be relied on: {reason}." for reason in bundle["void"]) or ("Nothing.",),
            ),
            *(() if answers is None else (answered(answers, plural(answers["unit"])),)),
            _performance(summary),
            practice(
                summary,
                *(() if answers is None else (answers["estimates"], answers["discount"])),
                cloned=policy["policy"] == "models/behaviour",
            ),
            _limits(statement, summary),
            _expert(statement, policy, clone, answers),
        ),
    )


def _verdict(statement: Mapping[str, Any], sound: bool, also: str) -> str:
    if not statement["private"]:
        return "No protection: nothing is guaranteed about the data this was made from"
    promised = f"{guarantee(statement)}{also}"
    return promised if sound else f"{promised}. Do not rely on it"


def _advice(policy: Mapping[str, Any], summary: Mapping[str, Any], *, asked: bool) -> tuple[Section, ...]:
    """What to do with the policy; nothing where an environment measured it."""
    advice = summary.get("recommendation")
    if advice is None:
        return ()
    held = {"models/policy": "the policy that was learned", "models/behaviour": "the clone of today's practice"}
    points = [f"{ADVICE[advice['answer']]}.", advice["reason"], f"This bundle holds {held[policy['policy']]}."]
    if policy["policy"] != advice["policy"]:
        points.append("That is not what is recommended: whoever made the bundle chose it in so many words.")
    if asked:
        points.append(
            "The answers of the private data had a say in which policy this bundle holds. The guarantee of this card "
            "counts them; policy/privacy.json is of the policy's weights alone."
        )
    return (Section("What is recommended", tuple(points)),)


def _what(statement: Mapping[str, Any], model: Mapping[str, Any], policy: Mapping[str, Any]) -> Section:
    where = "learned from records, with no simulator"
    if policy["environment"] is not None:
        where = f"for the environment {policy['environment']}"
    answer = _count(policy["action_size"], "control value")
    if policy["discrete_actions"]:
        answer = f"one of {_count(policy['action_size'], 'action')}"
    return Section(
        "What this is",
        (
            f"A control policy {where}{_imitates(policy)}: it takes {policy['observation_size']} measurements and "
            f"answers with {answer}.",
            *_named("The measurements, in this order", policy.get("observation_names")),
            *_named(
                "The actions, numbered from 0" if policy["discrete_actions"] else "The control values, in this order",
                policy.get("action_names"),
            ),
            f"{_model(policy)}: {model['members']} neural networks that predict what happens next.",
            f"Both were made from {_count(statement['units'], 'private ' + statement['unit'])}"
            " and from what was taken as public, listed below.",
        ),
    )


def _imitates(policy: Mapping[str, Any]) -> str:
    return ", an imitation of what was done in them" if policy["policy"] == "models/behaviour" else ""


def _model(policy: Mapping[str, Any]) -> str:
    own = "it was judged in" if policy["policy"] == "models/behaviour" else "it was trained in"
    return f"The dynamics model {own}"


def _named(what: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """A point with the names of columns or actions; none where the data do not name them."""
    if not names or unnamed(names):
        return ()
    return (f"{what}: {', '.join(names)}.",)


def _protected(statement: Mapping[str, Any]) -> Section:
    unit = statement["unit"]
    if not statement["private"]:
        return Section("What is protected, and against whom", ("Nothing is protected.",))
    return Section(
        "What is protected, and against whom",
        (
            f"Protected: whether any one private {unit} was in the data, and with that everything in it.",
            f"Against: anybody who has this bundle, even if they know all other {plural(unit)}, the program and every "
            "setting in it.",
            *_not_protected(statement),
            "Not against: people who can open the data themselves.",
        ),
    )


def _not_protected(statement: Mapping[str, Any]) -> tuple[str, ...]:
    """A point with the number of units that are declared public; none where the statement does not say."""
    public, unit = statement.get("public_units"), statement["unit"]
    if public is None:
        return ()
    if public == 0:
        return (f"Declared public: no {unit}.",)
    verb = "is" if public == 1 else "are"
    return (f"Not protected: {_count(public, unit)} that {verb} declared public, beside the private ones.",)


def _spent(ledger: Mapping[str, Any], answers: Mapping[str, Any] | None) -> Section:
    heading = "What was spent so far on this dataset"
    runs = _count(ledger["charges"], "run")
    if ledger["epsilon"] is None:
        total = (
            f"{runs} used these data, one without a guarantee or without a declared bound among them: the results of "
            "all of them together would promise nothing."
        )
    else:
        total = (
            f"{runs} used these data, this one included. For somebody who sees the results of all of them the bound is "
            f"ε = {at_most(ledger['epsilon'])} at δ = {at_most(ledger['delta'])}."
        )
    groups: dict[tuple[Any, ...], list[str]] = {}
    for record in ledger["records"]:
        key = (record["stage"], record["epsilon"], record["delta"], record["state"], record["same_version"])
        groups.setdefault(key, []).append(record["day"])
    points = (total,) if answers is None else (total, together(answers))
    return Section(heading, points, tuple(_charge(*key, days=days) for key, days in groups.items()))


def _charge(
    stage: str, epsilon: float | None, delta: float, state: str, same_version: bool, *, days: Sequence[str]
) -> Row:
    when = days[0] if min(days) == max(days) else f"{min(days)} to {max(days)}"
    cost = "no guarantee" if epsilon is None else f"ε = {at_most(epsilon)}, δ = {at_most(delta)} each"
    where = "" if same_version else ", on another version that shares data with this one"
    outcome = {"committed": "done", "reserved": "begun", "aborted": "failed, counted all the same"}[state]
    return f"{len(days)} × {stage}", f"{cost}; {outcome}{where}; {when}"


def _performance(summary: Mapping[str, Any]) -> Section:
    seeds = summary.get("seeds", ())
    if summary["return_mean"] is None:
        return Section("How well it performs", _in_the_model(summary))
    low, high = summary["return_ci95"]
    points = [
        f"Mean return in {summary['env_id']}: {summary['return_mean']:.4g}, 95% interval {low:.4g} to {high:.4g}, over "
        f"{_count(summary['episodes'], 'episode')}.",
        "The interval covers luck in the episodes, not in training: a policy trained again would differ.",
    ]
    if summary["normalized_score"] is not None:
        points.insert(1, f"Score on the scale declared for this environment: {summary['normalized_score']:.4g}.")
    if len(seeds) > 1:
        points.append(
            f"It is the first of {len(seeds)} trained alike with different seeds, and not chosen as the best."
        )
    return Section("How well it performs", tuple(points))


def _in_the_model(summary: Mapping[str, Any]) -> tuple[str, ...]:
    low, high = summary["model_value_range"]
    return (
        "This was not measured: there is no simulator of the task, and the policy was never tried out.",
        f"Its value in the released model: {summary['model_value']:.4g}; the {summary['model_value_members']} networks "
        f"by themselves say {low:.4g} to {high:.4g} (mean return of {summary['model_value_rollouts']} simulated "
        f"episodes each, of at most {_count(summary['model_value_horizon'], 'step')}).",
        f"That is {summary['model_value_note']}.",
        "The range shows how far the networks disagree. It is not a confidence interval: all may be wrong together.",
    )


def _limits(statement: Mapping[str, Any], summary: Mapping[str, Any]) -> Section:
    untried = (
        "Not for decisions about people, patients or machines without a test of its own: it was never tried out, and "
        "only the released model has judged it."
    )
    if summary["env_id"] is not None:
        untried = (
            f"Not for decisions outside {summary['env_id']}, nor about people, patients or machines, without a test of "
            "its own there: it was measured in that environment only."
        )
    points = [
        untried,
        "Not for finding out about single records, nor as proof that somebody is or is not among them.",
    ]
    if statement["private"]:
        points += [
            "Patterns of the data as a whole are not hidden: learning them is the purpose.",
            "Data declared public, and the facts taken as public above, are not protected at all.",
            "Results from the same data that are not in the ledger, and anything else that leaked, add to this.",
        ]
    return Section("What it must not be used for, and what is not covered", tuple(points))


def _expert(
    statement: Mapping[str, Any],
    policy: Mapping[str, Any],
    clone: Mapping[str, Any] | None,
    answers: Mapping[str, Any] | None,
) -> Section:
    accountant = statement["accountant"]
    rows = {
        EXACT_EPSILON: json.dumps(statement["epsilon"]),
        "ε by Rényi accounting": json.dumps(statement["epsilon_rdp"]),
        "δ": json.dumps(statement["delta"]),
        "privacy profile (ε, δ)": profile_row(statement),
        "ε if a unit is exchanged for another": json.dumps(statement.get("epsilon_replace_one")),
        "unit": statement["unit"],
        "neighbouring data": _relation(statement),
        "accountant": f"{accountant['name']} {accountant['version']}",
        "sampling probability": json.dumps(statement["sampling_probability"]),
        "noise multiplier": json.dumps(statement["noise_multiplier"]),
        "clipping": f"{json.dumps(statement['clipping_norm'])}, {statement['clipping']}",
        "rounds reserved": json.dumps(statement["rounds"]),
        "queries before the rounds": "; ".join(map(_query, statement["queries"])) or "none",
        "how episodes end": statement["termination"],
        "variant": policy["variant"],
        "charge": statement["charge"],
        "keyed fingerprint of the data": statement["dataset_fingerprint"],
    }
    files = "privacy.json, config.json, evaluation.json"
    points = [f"Printed from {files} and ledger-statement.json; no number was typed."]
    if answers is not None:
        points = [
            f"Printed from {files}, private-evaluation.json and ledger-statement.json; no number was typed.",
            "The first rows are of the model alone; clone and private evaluation follow.",
        ]
    rows |= expert_rows(clone, answers)
    return Section("For the expert", tuple(points), tuple(rows.items()))


def _relation(statement: Mapping[str, Any]) -> str:
    name = statement["neighboring_relation"].replace("_", " ")
    return f"{name}: all that one {statement['unit']} contributes is replaced by zeros; the number of them is public"


def _query(query: Mapping[str, Any]) -> str:
    return f"{query['what']}, noise multiplier {json.dumps(query['noise_multiplier'])}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what if number == 1 else plural(what)}"
