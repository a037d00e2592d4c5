"""The statement of what is made from several releases counts every mechanism, and no fact gets lost."""

from dataclasses import replace

import pytest

from primorl.privacy.accounting.epsilon import compose, training_event
from primorl.privacy.accounting.events import event_from_json, event_to_json
from primorl.privacy.statement import SpentOnDataset, Statement
from primorl.privacy.together import BEFOREHAND, joint_event, together
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


def both() -> Statement:
    model, clone = statement(9.0, queries=(14.0,), charges=1), statement(14.0, charge="b", charges=2)
    return together({"models/dynamics": model, "models/behaviour": clone})


def test_epsilon_is_that_of_all_releases_one_after_another() -> None:
    model, clone, whole = statement(9.0, queries=(14.0,)), statement(14.0), both()
    events = [training_event(1.0, 9.0, 10, (14.0,)), training_event(1.0, 14.0, 10)]
    assert whole.epsilon == compose(events, DELTA).epsilon_pld
    assert model.epsilon is not None
    assert clone.epsilon is not None
    assert max(model.epsilon, clone.epsilon) < whole.epsilon <= model.epsilon + clone.epsilon
    assert compose([event_from_json(whole.event)], DELTA).epsilon_pld == whole.epsilon
    assert whole.groups[0].epsilon is not None
    assert whole.groups[0].epsilon > whole.epsilon
    assert whole.profile[-1].epsilon > whole.epsilon


def test_each_mechanism_is_stated_by_itself_and_none_for_the_whole() -> None:
    whole = both()
    assert [part.what for part in whole.mechanisms] == ["models/dynamics", "models/behaviour"]
    assert [part.charge for part in whole.mechanisms] == ["a", "b"]
    assert [part.noise_multiplier for part in whole.mechanisms] == [9.0, 14.0]
    assert (whole.noise_multiplier, whole.rounds, whole.queries, whole.charge) == (None, None, (), None)
    assert whole.spent_on_dataset is not None
    assert whole.spent_on_dataset.charges == 2


def test_what_voids_one_voids_the_whole() -> None:
    doubtful = replace(statement(14.0), void=("noise is seeded",), public_assumptions=("the moon",))
    whole = together({"a": statement(9.0), "b": doubtful})
    assert not whole.sound
    assert whole.void == ("noise is seeded",)
    assert set(whole.public_assumptions) == {*statement(9.0).public_assumptions, "the moon", BEFOREHAND}


def test_without_a_guarantee_of_one_there_is_none_of_the_whole() -> None:
    bare = replace(statement(14.0), private=False, epsilon=None, epsilon_rdp=None, event=NOT_PRIVATE["event"])
    whole = together({"a": statement(9.0), "b": bare})
    assert (whole.private, whole.epsilon, whole.event) == (False, None, {"type": "NonPrivateDpEvent"})
    assert joint_event([statement(9.0).event, bare.event]).__class__.__name__ == "NonPrivateDpEvent"


@pytest.mark.parametrize("change", [{"delta": 1e-6}, {"units": 5}, {"dataset_fingerprint": "e" * 64}, {"unit": "day"}])
def test_statements_of_other_data_are_not_put_together(change: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match=rf"b/privacy.json: {next(iter(change))}: differs"):
        together({"a": statement(9.0), "b": replace(statement(14.0), **change)})  # type: ignore[arg-type]
