"""Words for privacy statements, private answers, and people."""

import re
from collections.abc import Mapping, Sequence

from primorl.evaluate.private.results import Answer, Verdict
from primorl.model.architecture import ModelConfig
from primorl.privacy.accounting.rounding import at_most
from primorl.privacy.statement import SpentOnDataset, Statement

ADVICE = {
    "trial": "Try the policy in a supervised trial",
    "keep": "Keep today's practice, and change nothing",
    "more_data": "Change nothing yet: the data do not tell whether the policy is better",
}
"""Recommendations in a few words."""
GAIN_NOTE = (
    "What the model says that the policy adds to the mean return; above 0 is better. The interval "
    "held the true gain in nine of ten runs on fourteen simulated logs. On logs that were made to "
    "mislead the model it does not, and harmful policies were recommended: real data may be so."
)
WHOSE = {
    "behaviour": "today's practice",
    "clone": "clone of today's practice",
    "policy": "the policy",
    "random": "random actions",
}
"""Names for `Answer.of`, in the order in which answers are listed."""

# how the assumption ends without which the ε of a whole run holds
_FIXED_BEFORE = "; else spent_on_dataset holds"


def guarantee(
    epsilon: float | None, delta: float | None, unit: str, void: Sequence[str] = ()
) -> str:
    """State a guarantee in one line, such as "ε = 1.20, δ = 1e-05 per trajectory"; without ε there
    is none.
    """
    if epsilon is None or delta is None:
        return "not private"
    text = f"ε = {at_most(epsilon)}, δ = {at_most(delta)} per {unit}"
    return f"{text} — VOID: {'; '.join(void)}" if void else text


def account(spent: SpentOnDataset | None) -> str:
    """State the cost of all runs on the same units in one line, such as "ε = 1.20, δ = 1e-05 in 3
    charges".
    """
    if spent is None:
        return "nothing"
    charges = f"{spent.charges} charge{'s' if spent.charges != 1 else ''}"
    if spent.epsilon is None:
        return f"no guarantee left: a run without one is among {charges}"
    return f"ε = {at_most(spent.epsilon)}, δ = {at_most(spent.delta)} in {charges}"


def value(number: float, ci95: Sequence[float] | None) -> str:
    """Format a number with its 95% interval: "-12.31 (-13.11 to -11.51)"."""
    if ci95 is None:
        return f"{number:.4g}"
    return f"{number:.4g} ({ci95[0]:.4g} to {ci95[1]:.4g})"


def label(name: str, labels: Mapping[str, str]) -> str:
    """Name a column or an action in declared words; in ``meal=snack`` and the like, the column.

    Columns and categories may have commas and equals signs in their names.
    """
    for given in (name, name.removeprefix("action ")):
        if given in labels:
            return labels[given]
    columns = "|".join(map(re.escape, sorted(labels, key=len, reverse=True)))
    found = rf"(^|, )({columns})(?==)"
    return re.sub(found, lambda each: each[1] + labels[each[2]], name) if labels else name


def list_explained(model: ModelConfig, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    """List the share of each column's variance that a model explains, the reward first; empty where
    nobody was asked.
    """
    found = model.explained or ()
    names = model.observation_names or [f"observation_{i}" for i in range(len(found) - 1)]
    rows = []
    for name, each in zip((*names, "reward"), found, strict=False):
        share = "not known: it hardly varies, or the noise of this question is too large"
        if each is not None:
            share = f"{each.share:.0%} ± {at_most(100 * each.error, 2)}%"
        rows.append((label(name, labels), share))
    return [*rows[-1:], *rows[:-1]]


def describe_signs(verdict: Verdict) -> str:
    """Say what speaks against the model; empty: nothing does, or nothing was asked."""
    signs = (veto.reason for veto in verdict.vetoes)
    return sentences(*(() if verdict.believed else ("do not believe the model",)), *signs)


def sentences(*clauses: str) -> str:
    """Make a sentence of each clause: with a capital letter, unless a file's name comes first."""
    made = []
    for clause in clauses:
        named = "/" in clause.partition(" ")[0]
        made.append(f"{clause}." if named else f"{clause[:1].upper()}{clause[1:]}.")
    return " ".join(made)


def describe_public(statement: Statement) -> str:
    """Say how many people are public; empty where a statement does not tell."""
    count, unit = statement.public_units, statement.unit
    if count is None:
        return ""
    if count == 0:
        return f"No {unit} is public."
    many = f"{count:,} {plural(unit)} are" if count > 1 else f"1 {unit} is"
    return f"{many} public and not protected."


def public_facts(statement: Statement) -> list[str]:
    """List what a statement takes as public, but for what the ε of a whole run does without."""
    return [line for line in statement.public_assumptions if not line.endswith(_FIXED_BEFORE)]


def source(answer: Answer) -> str:
    """Name an answer's estimator and its cost, such as "behaviour (ε 0.2)" or "model (free)"."""
    price = "free" if answer.delta is None else f"ε {at_most(answer.epsilon)}"
    return f"{answer.estimator} ({price})"


_NO_WORDS = ("", "id", "pid", "sid", "uid", "mrn", "ssn", "subjid", "usubjid")
_ID = r"(?i:(case|client|patient|person|stay|subject|user)ids?$)|(?<=[a-z])I[dD]s?$"
_ID += r"|[\s_.-]+(?i:ids?|no|nr|number|key|code|uuid)$"


def singular(unit: str, labels: Mapping[str, str] | None = None) -> str:
    """Name a unit in plain words, which the column of its ids may not have: those declared for the
    column, else the column's without what marks an id. MEDS' subject is a patient.
    """
    if labels and unit in labels and unit != "trajectory":
        return labels[unit]
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s_.-]+", " ", re.sub(_ID, r"\1", unit)).strip().lower()
    return "patient" if unit == "subject_id" else "person" if plain in _NO_WORDS else plain


def plural(noun: str) -> str:
    """Make the plural of a unit in plain words, such as "trajectories"."""
    for one, several in {"person": "people", "child": "children"}.items():
        if noun.endswith(one):
            return noun.removesuffix(one) + several
    if noun.endswith("y") and noun[-2:-1] not in set("aeou"):
        return noun[:-1] + "ies"
    return noun if noun.endswith("s") else noun + "s"
