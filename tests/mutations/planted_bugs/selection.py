"""Planted bugs of the private selection."""

from tests.mutations.planted_bugs.bug import Bug

_MECHANISM = "tests/privacy/mechanism/test_selection.py"
_PURE = "tests/privacy/accounting/test_pure.py"
_SCORES = "tests/evaluation/private/test_scores.py"
_SETUP = "tests/setup/test_selection.py"

SELECTION = [
    Bug(
        "selection-half-noise",
        "selection",
        "primorl/privacy/mechanism/selection.py",
        "Fraction(self.epsilon) / (1 + 2 * self.units * ROUNDING) / ONE",
        "2 * Fraction(self.epsilon) / ONE",
        "a candidate's noise is half of what ε needs",
        (_MECHANISM,),
    ),
    Bug(
        "selection-no-clamp",
        "selection",
        "primorl/privacy/mechanism/selection.py",
        "scores.to(torch.float64).nan_to_num(nan=0.0).clamp(0, 1)",
        "scores.to(torch.float64).nan_to_num(nan=0.0)",
        "one unit may move a sum by any amount",
        (_MECHANISM,),
    ),
    Bug(
        "selection-first-admitted",
        "selection",
        "primorl/privacy/mechanism/selection.py",
        "return admitted[below(self.entropy, len(admitted))]",
        "return admitted[0]",
        "of the admitted candidates the first one wins",
        (_MECHANISM,),
    ),
    Bug(
        "selection-counted-once",
        "selection",
        "primorl/privacy/accounting/accountants.py",
        "self._pld.compose(one.self_compose(count))",
        "self._pld.compose(one)",
        "several selections cost as much as one",
        (_PURE,),
    ),
    Bug(
        "selection-chosen-twice",
        "selection",
        "primorl/setup/selection.py",
        "            payment.save_checkpoint(SelectionState(started=1))\n",
        "",
        "a choice whose answer was lost is made again under the same charge",
        (_SETUP,),
    ),
    Bug(
        "selection-group-at-face-value",
        "selection",
        "primorl/privacy/accounting/groups.py",
        "return PureDpEvent(event.epsilon * units)",
        "return event",
        "a person with k units is told the ε of one",
        (_PURE,),
    ),
    Bug(
        "scores-of-padding",
        "selection",
        "primorl/evaluation/private/scores.py",
        "problem.discount ** episodes.step.double() * episodes.own",
        "problem.discount ** episodes.step.double()",
        "padding adds to a unit's score",
        (_SCORES,),
    ),
]
