"""The audit of a carried critic must go on to work: strict releases do not move, the papers' do."""

import numpy as np

from benchmarks.privacy.online_critic import Z, attacked, made, planned
from primorl.online.dppg import DPPG


def test_the_canary_moves_the_next_release_in_the_papers_mode_alone() -> None:
    scene, plan = made(), planned(Z)
    strict, _, _ = attacked(DPPG(0.5, 0.02, 2, 1, guarantee="strict"), scene, plan, 2)
    paper, _, _ = attacked(DPPG(0.5, 0.02, 2, 1, guarantee="paper"), scene, plan, 2)
    assert np.max(strict) == 0
    assert np.min(paper) > 0
