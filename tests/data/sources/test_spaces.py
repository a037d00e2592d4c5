"""What an environment's spaces declare: names of dimensions, and what is refused."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple, flatdim

from primorl.base.errors import PipelineError
from primorl.data.sources.spaces import names_of, spaces_of

ACTION = Box(-1, 1, (2,), np.float32)


def test_names_are_the_environments_where_it_has_some() -> None:
    space = Dict(
        {"pulse": Box(0, 1, (1,)), "colour": Discrete(3), "pose": Dict({"xy": Box(0, 1, (2,))})}
    )
    found = names_of(space, "observation")
    assert len(found) == flatdim(space)
    assert set(found) == {"pulse", "colour=0", "colour=1", "colour=2", "pose/xy_0", "pose/xy_1"}
    assert names_of(Box(0, 1, (2,)), "observation") == ("observation_0", "observation_1")
    assert names_of(MultiDiscrete([2, 1]), "x") == ("x_0=0", "x_0=1", "x_1=0")
    assert names_of(Tuple([Discrete(2), Box(0, 1, (1,))]), "observation") == ("0=0", "0=1", "1")


@pytest.mark.parametrize(
    ("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0), ([0, -np.inf], [1, 1])]
)
def test_actions_without_bounds_are_refused(low: Any, high: Any) -> None:
    ends = [np.broadcast_to(np.array(end, np.float32), (2,)) for end in (low, high)]
    with pytest.raises(PipelineError, match="x: action space: found a Box without finite bounds"):
        spaces_of("x", ACTION, Box(*ends, dtype=np.float32))


@pytest.mark.parametrize(
    "space", [Box(0, 255, (84, 84), np.uint8), Dict({"a": Box(0, 1, (64, 64, 3))})]
)
def test_images_are_refused(space: Box) -> None:
    with pytest.raises(PipelineError, match=r"x: observation space: found \d+ numbers"):
        spaces_of("x", space, ACTION)
