"""Settings that follow public rows, and how long recordings go on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from primorl.config.decisions import FITTED, TO_FIT
from primorl.config.params import Params, from_plain
from primorl.data.storage.rows import UnitStore
from primorl.model.architecture import Architecture
from primorl.model.ensemble import Bounds, GaussianEnsemble, Normaliser
from primorl.model.starts import StartModel
from primorl.work.policy import PublicLog, fitted_policy, unfitted
from tests.data.builders import episode, table
from tests.pipeline.tiny_policy import write_partition
from tests.projects import project_settings

LEFT_TO_THE_STAGE = {
    *("policy.reward_scale", "policy.horizon"),
    *("policy.rollout_batch", "policy.buffer_size"),
}
POLICY_KEYS = {key for key in FITTED if key.startswith("policy.")}
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
    return PublicLog(UnitStore.open(tmp_path / "public"))


@pytest.fixture
def auto() -> Params:
    return from_plain(project_settings(), dict.fromkeys(POLICY_KEYS, TO_FIT))


def test_recordings_go_on_as_long_as_public_ones_and_ends_of_the_model_are_not_counted_twice(
    public: PublicLog,
) -> None:
    shares = public.going_on(by_model=False)
    assert shares.tolist() == pytest.approx(
        [1, 1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3]
    )
    assert float(shares.sum()) == pytest.approx(public.mean_length)
    assert public.recorded is not None
    public.__dict__["recorded"] = replace(public.recorded, terminated=public.recorded.length == 5)
    assert public.going_on(by_model=True).tolist() == pytest.approx([1, 1, 1, *[2 / 3] * 7])
    assert public.going_on(by_model=False)[5] == pytest.approx(1 / 3)


def test_people_who_consented_do_not_stand_for_those_who_were_asked(
    public: PublicLog, auto: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "primorl.work.policy.open_public", lambda _: UnitStore.open(tmp_path / "public")
    )
    for first_states, expected in ((True, None), (False, 2)):
        monkeypatch.setattr(StartModel, "released_in", lambda folder, there=first_states: there)
        found = PublicLog.open(auto).store
        assert (None if found is None else found.units) == expected


def test_values_follow_the_public_rows(public: PublicLog, auto: Params) -> None:
    assert public.store is not None
    assert unfitted(auto)
    found = fitted_policy(auto, public, MODEL, near_clone=True)
    assert set(found) == LEFT_TO_THE_STAGE
    spread = float(public.store.flat()[1][:, 3].double().std(correction=0))
    assert found["policy.reward_scale"] == pytest.approx(10 / (spread * 6))
    assert found["policy.horizon"] == 6
    assert found["policy.horizon"] * found["policy.rollout_batch"] == pytest.approx(5000, abs=6)
    alone = fitted_policy(auto, public, MODEL, near_clone=False)
    assert alone["policy.reward_scale"] == pytest.approx(3 * found["policy.reward_scale"])
    done = auto.fitted(found)
    assert done.policy.horizon == 6
    assert done.unfitted == POLICY_KEYS - LEFT_TO_THE_STAGE
