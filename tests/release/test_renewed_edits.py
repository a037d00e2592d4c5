"""Changes by a stranger who makes every digest along the chain and both cards again, so that the bundle agrees."""

from pathlib import Path

import pytest

from primorl.project.files import read_json
from primorl.release.contents import EVALUATION, LEDGER, MODEL, POLICY
from tests.release.edits import (
    accepted,
    is_sampled,
    key_edits,
    leaves,
    renew_everything,
    setting,
    swapped,
    tensor_edits,
)

pytestmark = pytest.mark.usefixtures("accounted_once")

# What nothing in a bundle can show about a stranger who renews every digest along the chain and makes the cards again.
# The bundle agrees with itself then. Only its maker's signature tells (`tests/release/test_signature.py`).
NEEDS_A_SIGNATURE = {
    # Numbers that training could have found; a change by chance breaks the digests.
    *(f"{file}: layers" for file in (MODEL[0], POLICY[0])),
    *(f"{MODEL[0]}: target_{part}" for part in ("mean", "scale")),
    *(f"{MODEL[1]}: {key}" for key in ("log_variance_low", "log_variance_high", "reward_low", "reward_high")),
    *(f"{MODEL[1]}: {key}" for key in ("engine_version", "public_loss")),
    f"{POLICY[1]}: epochs",
    # Public facts of the data, and C, of which neither ε nor the weights depend in a way that could be seen.
    *(f"{MODEL[2]}: {key}" for key in ("units", "public_units", "public_assumptions", "clipping_norm", "clipping")),
    # The accountant's version: an ε that claims another one may be 0.1% lower than ours.
    *(f"{name}: accountant" for name in (MODEL[2], LEDGER)),
    # Names and days of charges; their events, ε and number are accounted again.
    f"{LEDGER}: records",
    # The returns, which a simulator measured, and their dataset's name.
    *(f"{EVALUATION}: {key}" for key in ("dataset", "return_mean", "return_ci95", "normalized_score", "episodes")),
    # What the public trajectories earn; they are not in the bundle.
    *(f"{EVALUATION}: public_{key}" for key in ("return_mean", "return_ci95", "trajectories")),
}


def test_from_a_stranger_who_renews_every_digest_only_these_edits_need_a_signature(
    original: Path, tmp_path: Path
) -> None:
    """The list is exact: an edit that is noticed without a signature must not stand in it."""
    edits = [(name, change) for name, change in tensor_edits(original) if "one number" in name]
    edits += [
        (name, change)
        for name, change in key_edits(original)
        if name.endswith("changed") and not name.startswith(POLICY[2]) and "sha256" not in name and "made" not in name
    ]
    found = {
        ": ".join(name.replace(": layers.", ": layers: ").split(": ")[:2])
        for name in accepted(original, tmp_path, edits, renew_everything)
    }
    assert found == NEEDS_A_SIGNATURE


def test_impossible_numbers_are_refused_from_a_stranger_who_renews_every_digest(original: Path, tmp_path: Path) -> None:
    """NaN, infinity, scales that are not positive, swapped bounds, weights that overflow: in every tensor."""
    impossible = [(name, change) for name, change in tensor_edits(original) if "one number" not in name]
    impossible += [(f"{key} swapped", swapped(key)) for key in ("reward", "log_variance")]
    assert accepted(original, tmp_path, impossible, renew_everything) == []


def test_a_lower_epsilon_is_refused_from_a_stranger_who_renews_every_digest(original: Path, tmp_path: Path) -> None:
    """0.1% less, at every place that states an ε; and another δ."""
    edits = [
        (f"{name}: {'.'.join(map(str, path))}", setting(name, path, value * factor))
        for name in (MODEL[2], LEDGER)
        for path, value in leaves(read_json(original / name))
        if path[-1] in ("epsilon", "epsilon_rdp", "delta") and value and is_sampled(name, path)
        for factor in (0.999, 1 - 1e-8, 1.001)
    ]
    assert len(edits) >= 3 * 10
    assert accepted(original, tmp_path, edits, renew_everything) == []
