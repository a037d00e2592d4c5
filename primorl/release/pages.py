"""The cards of a bundle: both are functions of its other files, so anybody can make them again and compare."""

from dataclasses import replace
from pathlib import Path

from primorl.evaluation.wording import guarantee
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, read_json
from primorl.release.card import Section
from primorl.release.card_answers import whole
from primorl.release.card_content import make_card
from primorl.release.contents import ANSWERS, CARDS, EVALUATION, FILES, LEDGER, MODEL, OPTIONAL, POLICY


def promised(folder: Path) -> str:
    """What all of a checked bundle guarantees together, in one line."""
    statement = read_json(folder / POLICY[2])
    if not (folder / ANSWERS).exists():
        return guarantee(statement)
    delta = read_json(folder / LEDGER)["delta"]
    return f"{guarantee(whole(statement, read_json(folder / ANSWERS), delta))}, private evaluation included"


def render(folder: Path) -> dict[str, str]:
    """Both cards by name, from the other files of the bundle in ``folder``, which were checked before.

    They name the digest of every file that they speak of.

    Raises:
        PipelineError: a card cannot state these figures.
    """
    files = [name for name in sorted({*FILES, *OPTIONAL} - {*CARDS}) if (folder / name).exists()]
    try:
        answers = read_json(folder / ANSWERS) if ANSWERS in files else None
        statement, model, policy, summary, ledger = (
            read_json(folder / name) for name in (POLICY[2], MODEL[1], POLICY[1], EVALUATION, LEDGER)
        )
        card = make_card(statement, model, policy, summary, ledger, answers)
    except (ArithmeticError, LookupError, TypeError, ValueError) as wrong:
        raise PipelineError(
            f"{folder}: found figures that no card can state ({type(wrong).__name__}); make the bundle again"
        ) from None
    digests = tuple((name, file_sha256(folder / name)) for name in files)
    described = Section("The files that this card describes, by their SHA-256", rows=digests)
    card = replace(card, sections=(*card.sections, described))
    return dict(zip(CARDS, (card.markdown(), card.html()), strict=True))
