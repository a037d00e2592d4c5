"""The statement of what is made from several releases counts every mechanism, and no fact gets lost."""

from dataclasses import replace

import pytest

from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.privacy.together import BEFOREHAND, together
from primorl.project.errors import PipelineError
from tests.statements import NOT_PRIVATE, OF_TRAINING

DELTA = 1e-5


def statement(multiplier: float, *, queries: tuple[float, ...] = (), charge: str = "a", charges: int = 1) -> Statement:
    """Of ten full-batch rounds."""
    event = training_event(1.0, multiplier, 10, queries)
    spent = compose([event], DELTA)
    return replace(
        OF_TRAINING,
        event=event_to_json(event),
        epsilon=spent.epsilon_pld,
        epsilon_rdp=spent.epsilon_rdp,
        sampling_probability=1.0,
        noise_multiplier=multiplier,
        rounds=10,
        charge=charge,
        spent_on_dataset=SpentOnDataset(epsilon=1, epsilon_fixed=1, epsilon_rdp=1, delta=DELTA, charges=charges),
    )


def test_epsilon_is_that_of_all_releases_one_after_another() -> None:
    """Each mechanism is stated by itself, and the whole has no rounds of its own."""
    model, clone = statement(9.0, queries=(14.0,), charges=1), statement(14.0, charge="b", charges=2)
    whole = together({"models/dynamics": model, "models/behaviour": clone})
    assert whole.epsilon == compose([event_from_json(each.event) for each in (model, clone)], DELTA).epsilon_pld
    assert model.epsilon is not None
    assert clone.epsilon is not None
    assert max(model.epsilon, clone.epsilon) < whole.epsilon <= model.epsilon + clone.epsilon
    assert compose([event_from_json(whole.event)], DELTA).epsilon_pld == whole.epsilon
    assert (whole.groups[0].epsilon or 0) > whole.epsilon
    assert whole.profile[-1].epsilon > whole.epsilon
    parts = [(part.what, part.charge, part.noise_multiplier) for part in whole.mechanisms]
    assert parts == [("models/dynamics", "a", 9.0), ("models/behaviour", "b", 14.0)]
    assert (whole.noise_multiplier, whole.rounds, whole.queries, whole.charge) == (None, None, (), None)
    assert whole.spent_on_dataset == clone.spent_on_dataset


def test_what_voids_one_voids_the_whole() -> None:
    doubtful = replace(statement(14.0), void=("noise is seeded",), public_assumptions=("the moon",))
    whole = together({"a": statement(9.0), "b": doubtful})
    assert whole.void == ("noise is seeded",)
    assert set(whole.public_assumptions) == {*statement(9.0).public_assumptions, "the moon", BEFOREHAND}
    bare = replace(statement(14.0), private=False, epsilon=None, epsilon_rdp=None, event=NOT_PRIVATE["event"])
    whole = together({"a": statement(9.0), "b": bare})
    assert (whole.private, whole.epsilon, whole.event) == (False, None, {"type": "NonPrivateDpEvent"})
    for change in ({"delta": 1e-6}, {"units": 5}, {"dataset_fingerprint": "e" * 64}, {"unit": "day"}):
        with pytest.raises(PipelineError, match=rf"b/privacy.json: {next(iter(change))}: differs"):
            together({"a": statement(9.0), "b": replace(statement(14.0), **change)})  # type: ignore[arg-type]
