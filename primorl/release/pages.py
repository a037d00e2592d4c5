"""The cards of a bundle: both are functions of its other files, so anybody can make them again and compare."""

from dataclasses import replace
from pathlib import Path

from primorl.evaluation.wording import guarantee
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json
from primorl.release.card import Section
from primorl.release.card_answers import counted_clone, included
from primorl.release.card_content import make_card
from primorl.release.contents import (
    ANSWERS,
    CARDS,
    CLONE,
    DECLARED,
    EVALUATION,
    FILES,
    LEDGER,
    MODEL,
    OPTIONAL,
    POLICY,
)
from primorl.release.guaranteed import whole


def promised(folder: Path) -> str:
    """What all of a checked bundle guarantees together, in one line."""
    clone, answers = (read_json(folder / name) if (folder / name).exists() else None for name in (CLONE, ANSWERS))
    ledger = read_json(folder / LEDGER)
    counted = counted_clone(clone, ledger)
    guaranteed = whole(read_json(folder / MODEL[2]), counted, answers, ledger["delta"])
    return f"{guarantee(guaranteed)}{included(counted, answers)}"


def render(folder: Path) -> dict[str, str]:
    """Both cards by name, from the other files of the bundle in ``folder``, which were checked before.

    They name the digest of every file that they speak of.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = [name for name in sorted({*FILES, *OPTIONAL} - {*CARDS}) if (folder / name).exists()]
    try:
        clone, answers, declared = (
            read_json(folder / name) if name in files else None for name in (CLONE, ANSWERS, DECLARED)
        )
        statement, model, policy, summary, ledger = (
            read_json(folder / name) for name in (MODEL[2], MODEL[1], POLICY[1], EVALUATION, LEDGER)
        )
        card = make_card(statement, model, policy, summary, ledger, clone, answers, declared)
    except (ArithmeticError, LookupError, TypeError, ValueError) as wrong:
        raise PipelineError(
            f"{folder}: found figures that no card can state ({type(wrong).__name__}); make the bundle again"
        ) from None
    digests = tuple((name, file_sha256(folder / name)) for name in files)
    described = Section("The files that this card describes, by their SHA-256", rows=digests)
    card = replace(card, sections=(*card.sections, described))
    return dict(zip(CARDS, (card.markdown(), card.html()), strict=True))
