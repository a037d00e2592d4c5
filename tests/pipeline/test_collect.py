import minari
import pytest

from pipeline import collect
from primorl.config.params import Params
from tests.pipeline.fakes import FakeRun


def test_it_leaves_one_dataset_and_tells_nothing_of_it(small: Params, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun()
    collect.body(small, run)
    assert minari.MinariDataset("data/raw/pendulum-replay-v0/data").total_episodes == 6
    assert run.logged == {"dataset": "pendulum-replay", "source": "replay", "environment": "Pendulum-v1"}
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "6 of 6 episodes" in printed.err
