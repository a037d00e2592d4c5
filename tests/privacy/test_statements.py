"""The statement of what is made from several releases counts every mechanism, and no fact gets
lost.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from primorl.base import PipelineError
from primorl.base.files import write_json
from primorl.privacy.accounting.epsilon import Training, compose, event_from_json, event_to_json
from primorl.privacy.accounting.figures import state_figures
from primorl.privacy.composition import (
    BEFOREHAND,
    check_held,
    check_parts,
    compose_statement,
    count_held,
    list_held_by_clone,
    verify,
)
from primorl.privacy.statement import (
    QueryStatement,
    SpentOnDataset,
    Statement,
    our_accountant,
)
from tests.statements import NOT_PRIVATE, OF_TRAINING, PRIVATE

DELTA = 1e-5
PATH = Path("privacy.json")


def statement(
    multiplier: float, *, queries: tuple[float, ...] = (), charge: str = "a", charges: int = 1
) -> Statement:
    event = Training(1.0, multiplier, 10, queries).event
    spent = compose([event], DELTA)
    total = SpentOnDataset(epsilon=1, delta=DELTA, charges=charges)
    return replace(
        OF_TRAINING,
        spent_on_dataset=total,
        sampling_probability=1.0,
        noise_multiplier=multiplier,
        rounds=10,
        charge=charge,
        event=event_to_json(event),
        epsilon=spent.epsilon_pld,
        epsilon_rdp=spent.epsilon_rdp,
    )


def test_epsilon_is_that_of_all_releases_one_after_another() -> None:
    model = statement(9.0, queries=(14.0,), charges=1)
    clone = statement(14.0, charge="b", charges=2)
    whole = compose_statement({"models/dynamics": model, "models/behaviour": clone})
    events = [event_from_json(each.event) for each in (model, clone)]
    assert whole.epsilon == compose(events, DELTA).epsilon_pld
    low, high = sorted([model.epsilon or 0.0, clone.epsilon or 0.0])
    assert high < (whole.epsilon or 0) <= low + high
    assert compose([event_from_json(whole.event)], DELTA).epsilon_pld == whole.epsilon
    assert (whole.groups[0].epsilon or 0) > whole.epsilon
    assert whole.profile[-1].epsilon > whole.epsilon
    parts = [(part.what, part.charge, part.noise_multiplier) for part in whole.mechanisms]
    assert parts == [("models/dynamics", "a", 9.0), ("models/behaviour", "b", 14.0)]
    assert (whole.noise_multiplier, whole.rounds, whole.charge) == (None, None, None)
    assert whole.spent_on_dataset == clone.spent_on_dataset


def test_what_a_clone_and_its_policy_share_counts_once() -> None:
    """A clone in the model's scales costs both charges, and a policy near it no more.

    Twin: under another charge the same event counts again.
    """
    asked = QueryStatement(what="scales", noise_multiplier=14.0, sensitivity=1.0, epsilon=0.3)
    model = replace(statement(9.0, queries=(14.0,)), queries=(asked,), void=("noise is seeded",))
    own = statement(14.0, charge="b", charges=2)
    clone = count_held(own, list_held_by_clone(model))
    assert clone.epsilon == compose_statement({"a": model, "b": own}).epsilon
    assert (clone.charge, clone.void, count_held(own, list_held_by_clone(own))) == (
        "b",
        model.void,
        own,
    )
    check_held(PATH, clone, list_held_by_clone(model))
    with pytest.raises(PipelineError, match="mechanisms: not those of models/dynamics and of its"):
        check_held(PATH, own, list_held_by_clone(model))
    parts = {"models/dynamics": model, "models/behaviour": clone}
    near = compose_statement(parts)
    assert near == replace(clone, charge=None)
    check_parts(PATH, near, parts)
    with pytest.raises(
        PipelineError, match=r"not that of models/dynamics/privacy\.json and models/"
    ):
        check_parts(PATH, model, parts)
    other = compose_statement({"models/dynamics": replace(model, charge="c"), "b": clone})
    events = [event_from_json(each.event) for each in (model, model, own)]
    assert other.epsilon == compose(events, DELTA).epsilon_pld


def test_what_voids_one_voids_the_whole() -> None:
    doubtful = replace(statement(14.0), void=("noise is seeded",), public_assumptions=("the moon",))
    whole = compose_statement({"a": statement(9.0), "b": doubtful})
    assert whole.void == ("noise is seeded",)
    assert set(whole.public_assumptions) == {
        *statement(9.0).public_assumptions,
        "the moon",
        BEFOREHAND,
    }
    bare = replace(
        statement(14.0), private=False, epsilon=None, epsilon_rdp=None, event=NOT_PRIVATE["event"]
    )
    whole = compose_statement({"a": statement(9.0), "b": bare})
    assert (whole.private, whole.epsilon) == (False, None)
    assert whole.event == {"type": "NonPrivateDpEvent"}
    changed: dict[str, Any] = {"delta": 1e-6, "units": 5, "unit": "day"}
    for key, value in (changed | {"dataset_fingerprint": "e" * 64}).items():
        other = replace(statement(14.0), **{key: value})
        with pytest.raises(PipelineError, match=rf"b/privacy.json: {key}: not that of the other"):
            compose_statement({"a": statement(9.0), "b": other})


CONTRACT = """
private epsilon delta unit neighboring_relation accountant epsilon_rdp event rounds void
sampling_probability noise_multiplier clipping_norm public_assumptions dataset_fingerprint
"""


def test_it_comes_back_as_it_was_and_what_it_cannot_mean_is_refused(tmp_path: Path) -> None:
    """A guarantee without its numbers; and a format of before: without a version it counts as
    format 1.
    """
    for content in (PRIVATE, NOT_PRIVATE):
        write_json(tmp_path / "privacy.json", content)
        found = Statement.read(str(tmp_path))
        found.write(str(tmp_path / "again"))
        again = json.loads((tmp_path / "again/privacy.json").read_text(encoding="utf-8"))
        assert again == content == found.to_json()
        assert set(CONTRACT.split()) <= set(content)
        assert found.sound is bool(content["private"])
    for key in ("epsilon", "delta", "sampling_probability", "clipping_norm", "rounds"):
        write_json(tmp_path / "privacy.json", PRIVATE | {key: None})
        with pytest.raises(PipelineError, match=f"private: true, yet {key} is null"):
            Statement.read(tmp_path)
    write_json(tmp_path / "privacy.json", PRIVATE | {"format": 2})
    with pytest.raises(PipelineError, match=r"privacy.json: found format 2"):
        Statement.read(tmp_path)


def scaled(points: tuple[Any, ...], place: int, key: str, factor: float = 0.9) -> tuple[Any, ...]:
    changed = replace(points[place], **{key: factor * getattr(points[place], key)})
    return (*points[:place], changed, *points[place + 1 :])


LESS: list[tuple[str, Callable[[Any], Any]]] = [
    ("epsilon_replace_one", lambda s: 0.9 * s.epsilon_replace_one),
    ("groups", lambda s: scaled(s.groups, 1, "epsilon")),
    ("groups", lambda s: s.groups[:2]),
    ("attacks", lambda s: scaled(s.attacks, 2, "true_positive_rate")),
    ("attacks", lambda _: ()),
    ("profile", lambda s: scaled(s.profile, 4, "epsilon")),
    ("profile", lambda s: s.profile[1:]),
    ("profile", lambda _: ()),
]


def test_a_figure_that_promises_more_is_named() -> None:
    """Twins: the accountant's own pass, and so does a figure that promises less."""
    run = Training(0.1, 8.763, 150)
    figures = state_figures(run.event, run.compute_spent(DELTA))
    other = replace(OF_TRAINING, noise_multiplier=8.763, **figures)
    ours = replace(other, accountant=our_accountant())
    verify(PATH, ours)
    verify(PATH, replace(ours, groups=scaled(ours.groups, 1, "epsilon", 1.1)))
    for key, change in LESS:
        with pytest.raises(PipelineError, match=f"^privacy.json: {key}: "):
            verify(PATH, replace(other, **{key: change(other)}))
    barely = scaled(ours.profile, 9, "delta", 0.9999)
    with pytest.raises(PipelineError, match=r"^privacy\.json: profile: "):
        verify(PATH, replace(ours, profile=barely))
    verify(PATH, replace(other, profile=barely))
