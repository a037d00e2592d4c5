"""Settings that follow public rows, and how long recordings go on."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from primorl.config.params import Params
from primorl.data.storage.rows import UnitStore
from primorl.evaluate.private.problem import Recordings
from primorl.model.architecture import TERMINATION_GAIN, Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.model.termination import LEARNED, NONE
from primorl.stages.policy import PublicLog, decide_policy, find_ends, is_undecided
from tests.data.builders import episode, table
from tests.pipeline.tiny_policy import write_partition
from tests.projects import from_plain, project_settings

SHAPE = Architecture(3, 1, 1, (2,), -10.0, 0.5)
BOX, ONE = torch.full((3,), 9.0), torch.ones(1)
AS_IS = Normaliser(torch.zeros(4), torch.ones(4), torch.zeros(4), torch.ones(4))
MODEL = GaussianEnsemble(
    SHAPE, SHAPE.initial_weights(0), AS_IS, Bounds(-BOX, BOX, -ONE, ONE, -12.0, 0.0)
)


@pytest.fixture
def public(tmp_path: Path) -> PublicLog:
    content = table(
        [episode(n, seed=n) for n in (3, 5, 10)], units=["a", "a", "b"], names=["a0", "a1", "b0"]
    )
    write_partition(tmp_path / "public", content)
    return PublicLog(tmp_path, UnitStore.open(tmp_path / "public"))


@pytest.fixture
def auto() -> Params:
    return from_plain(project_settings())


def test_recordings_go_on_as_long_as_public_ones_and_ends_of_the_model_are_not_counted_twice(
    public: PublicLog,
) -> None:
    """Each person counts once, as in what is reported: the one with two trajectories, too."""
    shares = public.step_shares(NONE)
    assert shares.tolist() == pytest.approx([1, 1, 1, *[3 / 4] * 2, *[1 / 2] * 5])
    reported = Recordings.of(public.folder, public.public).survival(10, NONE)
    assert torch.equal(shares, reported)
    recorded = public.trajectories
    assert recorded is not None
    public.__dict__["trajectories"] = replace(recorded, terminated=recorded.length == 5)
    assert public.step_shares(None).tolist() == pytest.approx([1, 1, 1, *[3 / 4] * 7])
    assert public.step_shares(NONE)[5] == pytest.approx(1 / 2)


def test_learned_ends_are_used_where_episodes_then_last_as_the_peoples_do(
    auto: Params,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A chance of 5% a step is fitted to lengths of 10%. The twin: lengths that no chance makes."""
    shape = replace(SHAPE, learned_termination=True)
    weights = shape.initial_weights(0)
    weights[-1][..., -1] = math.log(0.05 / 0.95) / TERMINATION_GAIN
    model = GaussianEnsemble(shape, weights, replace(AS_IS, flag=True), MODEL.bounds, LEARNED)
    still = SimpleNamespace(policies=1, act=lambda seen: torch.zeros(1, seen.shape[1], 1))
    tenth = 0.9 ** torch.arange(40, dtype=torch.float64)
    at_once = (torch.arange(40) < 12).double()
    place = "primorl.stages.policy."
    monkeypatch.setattr(place + "BehaviourPolicy.load", lambda *_: None)
    monkeypatch.setattr(place + "SampledClone", lambda *_: still)
    monkeypatch.setattr(place + "_noise_of_lengths", lambda: 0.0)
    monkeypatch.setattr(PublicLog, "begin", lambda *_: torch.zeros(4, 3))
    nobody = PublicLog(tmp_path, None)
    for lengths, believed in ((tenth, True), (at_once, False)):

        def released(_: Path, *, by_model: bool, lengths: Tensor = lengths) -> Tensor:
            return torch.ones_like(lengths) if by_model else lengths

        monkeypatch.setattr(place + "survival_of", released)
        ends = find_ends(auto, nobody, model, near_clone=True)
        assert (ends != NONE) is believed
        assert ("not used" in capsys.readouterr().err) is not believed
        if isinstance(ends, float):
            state = torch.zeros(1, 3), torch.zeros(1, 1)
            fitted = model.with_ends(ends).predict(*state)[2]
            assert fitted is not None
            assert float(fitted) == pytest.approx(0.1, abs=0.02)
    assert find_ends(auto, nobody, model, near_clone=False) == NONE, "there is no clone"


def test_people_who_consented_do_not_stand_for_those_who_were_asked(
    public: PublicLog, auto: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "primorl.stages.policy.open_public", lambda _: UnitStore.open(tmp_path / "public")
    )
    for first_states, expected in ((True, None), (False, 2)):
        asked = "primorl.evaluate.private.problem.asked_of_private"
        monkeypatch.setattr(asked, lambda folder, there=first_states: there)
        found = PublicLog.open(auto).public
        assert (None if found is None else found.units) == expected


def test_values_follow_the_public_rows(public: PublicLog, auto: Params) -> None:
    assert public.public is not None
    assert is_undecided(auto.policy)
    found = decide_policy(auto.policy, public, MODEL, near_clone=True)
    assert not is_undecided(found)
    spread = float(public.public.flat()[1][:, 3].double().std(correction=0))
    assert found.reward_scale == pytest.approx(10 / (spread * 7))
    assert found.horizon == 7
    assert 7 * (found.rollout_batch or 0) == pytest.approx(5000, abs=6)
    alone = decide_policy(auto.policy, public, MODEL, near_clone=False)
    assert alone.reward_scale == pytest.approx(3 * found.reward_scale)
    many = replace(auto.policy, epochs=24, updates_per_epoch=1600, discount=0.99)
    rates = [
        decide_policy(policy, public, MODEL, near_clone=near).target_rate
        for policy, near in ((many, True), (many, False), (replace(many, epochs=4), False))
    ]
    assert rates == [0.005, pytest.approx(4 / (38_400 * 0.01)), 0.02]
    given = replace(auto.policy, horizon=9)
    assert decide_policy(given, public, MODEL, near_clone=True).horizon == 9
    large = replace(given, rollout_batch=20_000, epochs=1, updates_per_epoch=6)
    assert decide_policy(large, public, MODEL, near_clone=True).buffer_size == 180_000
