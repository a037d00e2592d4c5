"""What a log without an environment gets where nobody says: shares of the model's ε."""

from typing import Any

import yaml

from primorl.config import params, shares
from primorl.config.params import Params
from tests.projects import ROOT


def parsed(environment: str | None, privacy: dict[str, Any], tmp_path: Any, **suggested: Any) -> Params:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    entry = yaml.safe_load((ROOT / "datasets/csv-log.yaml").read_text(encoding="utf-8"))
    entry["suggested"] |= {"privacy": {}, "evaluation": {}} | suggested
    if environment is not None:
        entry["environment"] = environment
        entry["options"]["columns"]["action"] |= {"low": None, "high": None}
    raw["privacy"] |= privacy
    (tmp_path / "datasets").mkdir()
    for name, content in (("log", entry), ("defaults", None)):
        text = (ROOT / "datasets/defaults.yaml").read_text(encoding="utf-8")
        (tmp_path / f"datasets/{name}.yaml").write_text(text if content is None else yaml.safe_dump(content))
    return params.parse(raw | {"dataset": "log"}, tmp_path / "params.yaml")


def test_without_an_environment_the_clone_and_two_questions_get_their_shares(tmp_path: Any) -> None:
    found = parsed(None, {"target_epsilon": 0.5}, tmp_path)
    assert found.evaluation.private.estimators == {"behaviour": 0.1, "model_check": 0.1}
    assert found.behaviour.target_epsilon == 0.175
    assert found.evaluation.private.return_bounds == "public"
    assert found.origins[shares.ESTIMATORS] == "datasets/defaults.yaml"


def test_with_a_noise_multiplier_the_model_s_statement_says_what_a_share_is(tmp_path: Any) -> None:
    found = parsed(None, {"target_epsilon": None, "noise_multiplier": 4.0}, tmp_path)
    assert found.evaluation.private.estimators == {}
    assert found.origins[shares.ESTIMATORS] == shares.STATED
    assert found.behaviour.target_epsilon is None
    assert shares.estimators(0.3) == {"behaviour": 0.06, "model_check": 0.06}
