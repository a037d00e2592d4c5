"""Without the extra ``rlhf``, language models say what to install."""

import sys
from typing import Any

import pytest

from primorl.project.errors import PipelineError
from primorl.setup.language.loading import load_policy, load_prompts, load_reward


@pytest.mark.parametrize("load", [lambda name: load_policy(name, 2), lambda name: load_reward(name, 8), load_prompts])
def test_a_missing_extra_is_said_in_one_line(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("transformers", "datasets"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PipelineError, match=r"needs the package \w+; `pip install 'primorl\[rlhf\]'`") as refused:
        load("some/name")
    assert "\n" not in str(refused.value)
