"""A policy on disk and in use: it acts as the one that is evaluated, one line for what cannot be,
and one that was advised against is used only by name and in so many words.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa
import torch
from safetensors.torch import load_file, save_file

import primorl
from primorl.base import PipelineError
from primorl.base.files import file_sha256, read_json, write_json
from primorl.commands.main import main
from primorl.policy.exported import DeterministicPolicy, save
from primorl.policy.loaded import ObservationError, OutsideRangeError, Policy, read_policy

LOW, HIGH = torch.tensor([-0.3, 1.7]), torch.tensor([0.1, 900.1])


def policy(seed: int) -> DeterministicPolicy:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1, 16, 3), (1, 1, 16), (1, 8, 16), (1, 1, 8), (1, 2, 8), (1, 1, 2)]
    layers = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return DeterministicPolicy(
        layers, torch.tensor([1.0, 0.0, -1.0]), torch.tensor([1.0, 2.0, 0.5]), LOW, HIGH
    )


EPOCHS = [policy(seed) for seed in range(4)]


def test_a_saved_policy_acts_as_before(tmp_path: Path) -> None:
    save(tmp_path, EPOCHS, variant="private", environment=None)
    observation = torch.randn(4, 30, 3, generator=torch.Generator().manual_seed(9))
    assert torch.equal(
        DeterministicPolicy.load(tmp_path).act(observation[3:]), EPOCHS[3].act(observation[3:])
    )
    far = EPOCHS[0].act(1e30 * observation[:1])
    assert bool(((far >= LOW) & (far <= HIGH)).all()), "rounding steps over no bound"
    epochs = DeterministicPolicy.load(tmp_path, "epochs.safetensors")
    assert (epochs.policies, epochs.observation_size, epochs.action_size) == (4, 3, 2)
    for i, alone in enumerate(EPOCHS):
        torch.testing.assert_close(epochs.act(observation)[i], alone.act(observation[i : i + 1])[0])


def rewritten(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def break_it(file: Path) -> None:
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return break_it


def declared(**about: Any) -> Callable[[Path], object]:
    def contradict(file: Path) -> None:
        config = file.with_name("config.json")
        write_json(config, read_json(config) | about)

    return contradict


BREAKAGES: dict[str, Callable[[Path], object]] = {
    "cut short": lambda file: file.write_bytes(file.read_bytes()[:-50]),
    "another shape": rewritten(lambda t: t.update({"layers.1.weight": torch.zeros(1, 8, 15)})),
    "a layer less": rewritten(lambda t: t.pop("layers.1.weight")),
    "not a number": rewritten(lambda t: t["layers.0.bias"].fill_(torch.nan)),
    "bounds of fewer columns": declared(observation_low=[0.0], observation_high=[1.0]),
    "fewer names": declared(observation_names=["a"]),
    "no such column": declared(one_hot=[[0, 99]]),
}


@pytest.mark.parametrize("breakage", BREAKAGES.values(), ids=BREAKAGES)
def test_weights_that_are_broken_or_declared_otherwise_are_named_in_one_line(
    tmp_path: Path, breakage: Callable[[Path], object]
) -> None:
    loaded(tmp_path)
    breakage(tmp_path / "policy.safetensors")
    with pytest.raises(PipelineError, match=r"^[^\n]*(not a policy|not as declared)[^\n]*$"):
        read_policy(tmp_path)


LOG: dict[str, Any] = {
    "observation_range": (torch.tensor([-10.0, -10.0, 5.0]), torch.tensor([10.0, 10.0, 5.0]))
}
RANGE: dict[str, Any] = {"environment": "Pendulum-v1"} | LOG
NAMES: dict[str, Any] = {"action_names": ("up", "down")}
NAMES["observation_names"] = ("age", "dose", "weight")
ROWS = np.array([[0.5, -9.0, 5.0], [1.0, 2.0, 5.5], [-3.0, 8.0, 4.9]])


def loaded(folder: Path, *, discrete: bool = False, **about: Any) -> Policy:
    folder.mkdir(exist_ok=True)
    epochs = [replace(one, discrete_actions=discrete) for one in EPOCHS]
    save(folder, epochs, variant="private", **{"environment": None} | about)
    return read_policy(folder)


def test_the_folder_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(tmp_path / "policy")
    monkeypatch.setenv("HOME", str(tmp_path))
    primorl.load_policy("~/policy", against_advice=True)


def test_it_acts_as_the_policy_that_is_evaluated(tmp_path: Path) -> None:
    """Within the bounds; discrete actions are integers.

    The twin: another epoch's policy acts otherwise.
    """
    policy = loaded(tmp_path)
    rows = torch.randn(200, 3, generator=torch.Generator().manual_seed(1)) * 5
    actions = policy.act(rows)
    np.testing.assert_allclose(
        actions, DeterministicPolicy.load(tmp_path).act(rows[None])[0], rtol=1e-4, atol=1e-4
    )
    other = (
        DeterministicPolicy.load(tmp_path, "epochs.safetensors").one(0).act(rows[None])[0].numpy()
    )
    assert np.abs(actions - other).max() > 0.01
    assert ((actions >= LOW.numpy()) & (actions <= HIGH.numpy())).all()
    batch: Any = policy.act(ROWS.tolist())
    assert (batch.shape, batch.dtype) == ((3, 2), np.float32)
    np.testing.assert_allclose(policy.act(torch.tensor(ROWS[1])), batch[1], rtol=1e-5)
    policy = loaded(tmp_path, discrete=True)
    one_hot = DeterministicPolicy.load(tmp_path).act(torch.from_numpy(ROWS).float()[None])[0]
    numbers, one = np.asarray(policy.act(ROWS)), policy.act(ROWS[2])
    assert numbers.dtype == np.int64
    assert numbers.tolist() == one_hot.argmax(-1).tolist()
    assert (type(one), one) == (int, numbers[2])


NUMBERS = pd.DataFrame(ROWS, columns=["age", "dose", "weight"])
TABLE = NUMBERS.assign(name="x")
TURNED = {name: ROWS[:, place] for place, name in ((2, "weight"), (0, "age"), (1, "dose"))}


def queried(query: str) -> Sequence[Any]:
    """Ask a database of `NUMBERS`."""
    with sa.create_engine("sqlite://").connect() as store:
        NUMBERS.to_sql("log", store, index_label="place")
        return store.execute(sa.text(query)).all()


TABLES: dict[str, tuple[Any, Any]] = {
    "in another order": (TABLE[["weight", "name", "age", "dose"]], ROWS),
    "one row": (TABLE.iloc[1], ROWS[1]),
    "columns without names": (pd.DataFrame(ROWS), ROWS),
    "a table of Arrow": (pa.table(TURNED), ROWS),
    "named tuples, with the index": ([*NUMBERS[[*TURNED]].itertuples()], ROWS),
    "rows of a database": (queried("select weight, age, dose from log order by place"), ROWS),
    "a dict": ({"weight": ROWS[1][2], "age": ROWS[1][0], "dose": ROWS[1][1], "x": "y"}, ROWS[1]),
    "a dict of columns": (TURNED, ROWS),
}


@pytest.mark.parametrize("table", TABLES)
def test_columns_of_a_table_are_found_by_their_names(tmp_path: Path, table: str) -> None:
    policy = loaded(tmp_path, **RANGE, **NAMES)
    given, rows = TABLES[table]
    np.testing.assert_array_equal(policy.act(given), policy.act(rows))
    with pytest.raises(ObservationError, match="found dose 0 times; allowed is each once"):
        policy.act(TABLE.drop(columns="dose"))
    twice = queried("select weight, age, dose, age from log")
    levels = NUMBERS.set_axis(pd.MultiIndex.from_product([["x"], NUMBERS.columns]), axis=1)
    for wrong, says in ((twice, "found age 2 times"), (levels, "age 0 times, dose 0 times")):
        with pytest.raises(ObservationError, match=says):
            policy.act(wrong)
    for kind in ("Float64", "string", "object"):
        lacking = TABLE.assign(dose=TABLE.dose.astype(kind).where([True, False, True]))
        with pytest.raises(ObservationError, match="not numbers"):
            policy.act(lacking)


MASKED = np.ma.array([0.0, 1.0, 5.0], mask=[False, True, False])
WRONG: tuple[tuple[Any, str], ...] = (
    ([1.0, 2.0], r"observation: found shape 2; allowed: \[3\] or \[n, 3\]"),
    (np.array([0.5, "1", 5.0], dtype=object), "observation: not numbers"),
    ([[1.0, 2.0, 3.0], [1.0]], "observation: not numbers"),
    (MASKED, "observation: dose is not a finite"),
    ([1e300, 0.0, 5.0], "observation: age is not a finite"),
    ([[0.0, 0.0, 5.0], [0.0, 33.0, 5.0]], r"observation\[1\]: dose lies outside"),
)


def test_what_cannot_be_answered_is_one_line(tmp_path: Path) -> None:
    policy = loaded(tmp_path, **RANGE, **NAMES)
    for given, says in WRONG:
        with pytest.raises(ObservationError, match=says) as refused:
            policy.act(given)
        assert isinstance(refused.value, OutsideRangeError) is ("outside" in says)
    assert policy.reasons(ROWS) == [""] * 3


def test_a_log_s_policy_answers_nothing_outside_the_range(tmp_path: Path) -> None:
    policy, simulated = loaded(tmp_path, **LOG), loaded(tmp_path / "simulated", **RANGE)
    policy.act([-10.0, 10.0, 5.0])
    for far in ([-10.1, 0.0, 5.0], [0.0, 10.1, 5.0]):
        with pytest.raises(OutsideRangeError):
            policy.act(far)
        simulated.act(far)
    with pytest.raises(OutsideRangeError, match="observation_0 lies outside"):
        simulated.act([-31.1, 0.0, 5.0])
    low, high = simulated.answerable_range
    assert (low.tolist(), high.tolist()) == ([-31.0, -32.0, 4.5], [31.0, 32.0, 5.5])
    anything = loaded(tmp_path)
    anything.act([-1e9, 1e9, 0.0])
    assert np.isinf(anything.answerable_range).all()


def test_a_row_that_is_two_categories_or_none_is_not_answered(tmp_path: Path) -> None:
    """Twins: one category; and a policy without categories, whatever its names."""
    rows = np.array([[1, 0, 5], [0, 1, 5], [1, 1, 5], [0, 0, 5], [2, -1, 5]])
    names = ("meal=none", "meal=snack", "x=1")
    policy = loaded(tmp_path, **RANGE, one_hot=((0, 2),), observation_names=names)
    assert policy.reasons(rows) == ["", "", *["meal is not exactly one of its categories"] * 3]
    with pytest.raises(OutsideRangeError, match=r"observation\[2\]: meal is not"):
        policy.act(rows)
    plain = loaded(tmp_path, **RANGE, observation_names=("bp=sys", "bp=dia", "age"))
    assert not any(plain.reasons(rows))


POLICY, CLONE = Path("models/policy"), Path("models/behaviour")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of a log, with a policy and a clone that nobody has evaluated."""
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for folder in (POLICY, CLONE):
        loaded(folder, **LOG, **NAMES)
        write_json(
            folder / "config.json", read_json(folder / "config.json") | {"policy": str(folder)}
        )
    Path("dvc.yaml").write_text("stages: {}\n", encoding="utf-8")
    Path("in.csv").write_text("age,dose,weight\n1,1,5\n", encoding="utf-8")
    return tmp_path


def advise(answer: str, policy: Path | None) -> None:
    named = None if policy is None else str(policy)
    said: dict[str, Any] = {"answer": answer, "policy": named, "reason": "It loses 3."}
    weights = {folder: file_sha256(folder / "policy.safetensors") for folder in (POLICY, CLONE)}
    answers = Path("metrics/private_evaluation.json")
    write_json(answers, {"clone_sha256": weights[CLONE], "answer": answer})
    about = {"policy_sha256": weights[POLICY], "private_evaluation_sha256": file_sha256(answers)}
    write_json(Path("metrics/summary.json"), about | {"recommendation": said})


def test_what_is_recommended_is_used_and_nothing_else(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twins: a trial is recommended; a policy that a simulator measured. Of a copy elsewhere nobody
    can tell.
    """
    Path("metrics").mkdir()
    advise("trial", POLICY)
    primorl.load_policy(POLICY)
    for answer, refused in (("keep", (POLICY,)), ("more_data", (POLICY, CLONE))):
        advise(answer, None)
        for folder in refused:
            with pytest.raises(PipelineError, match=rf"{folder}: advised against in .*It loses"):
                primorl.load_policy(folder)
        if answer == "keep":
            primorl.load_policy(CLONE)  # a record of practice, by name
    predict = ["predict", "--observations", "in.csv", "--out", "out.csv"]
    assert [main(predict), main([*predict, "--policy", str(POLICY)])] == [1, 1]
    assert main([*predict, "--against-advice"]) == 1
    assert "--against-advice: found without --policy" in capsys.readouterr().err
    assert not Path("out.csv").exists()
    assert main([*predict, "--policy", str(POLICY), "--against-advice"]) == 0
    assert f"actions of {POLICY}\n" in capsys.readouterr().out
    loaded(Path("elsewhere"), environment="Pendulum-v1")
    primorl.load_policy("elsewhere")
    for file in ("dvc.yaml", "metrics/summary.json"):
        Path(file).unlink()
    with pytest.warns(UserWarning, match="nothing recommends it"):
        primorl.load_policy(POLICY)


def test_a_project_recommends_the_weights_that_it_evaluated(project: Path) -> None:
    """Nobody has before an evaluation, after another training, or where the people's answers are
    newer.
    """
    Path("metrics").mkdir()
    with pytest.raises(PipelineError, match=r"nobody recommended this policy.*run `dvc repro`"):
        primorl.load_policy(POLICY)
    advise("trial", POLICY)
    primorl.load_policy(POLICY)
    said = read_json(Path("metrics/summary.json"))
    write_json(Path("metrics/summary.json"), said | {"policy_sha256": "0" * 64})
    with pytest.raises(PipelineError, match="nobody recommended this policy"):
        primorl.load_policy(POLICY)
    write_json(Path("metrics/summary.json"), said)
    primorl.load_policy(POLICY)
    answers = Path("metrics/private_evaluation.json")
    write_json(answers, read_json(answers) | {"answer": "newer"})
    with pytest.raises(PipelineError, match="nobody recommended this policy"):
        primorl.load_policy(POLICY)


def test_a_bundle_carries_its_advice(project: Path) -> None:
    """The clone that a bundle holds is a record; a policy that was released against its
    recommendation is not.
    """
    for folder, fine in ((CLONE, True), (POLICY, False)):
        bundle = Path(f"bundle-{fine}")
        bundle.mkdir()
        folder.rename(bundle / "policy")
        said = {"answer": "keep", "policy": None, "reason": "It loses 3."}
        weights = file_sha256(bundle / "policy/policy.safetensors")
        write_json(bundle / "MANIFEST.json", {})
        write_json(bundle / "evaluation.json", {"policy_sha256": weights, "recommendation": said})
        if fine:
            primorl.load_policy(bundle / "policy")
        else:
            with pytest.raises(PipelineError, match=r"advised against in .*evaluation\.json"):
                primorl.load_policy(bundle / "policy")
