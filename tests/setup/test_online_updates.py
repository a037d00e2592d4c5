from typing import get_args, get_type_hints

import pytest

from primorl.config import params as params_module
from primorl.config.blocks import Online
from primorl.setup.online import RELEASES, update_of
from tests.projects import project_settings

ALGORITHMS = get_args(get_type_hints(Online)["algorithm"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_bundle_knows_how_often_each_algorithm_releases(algorithm: str) -> None:
    content = project_settings()
    content["online"] |= {"algorithm": algorithm}
    update = update_of(params_module.from_plain(content).online, 0.99)
    assert RELEASES[update.name] == update.releases
    assert len(RELEASES) == len(ALGORITHMS)
