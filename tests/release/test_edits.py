"""Any one thing changed in a bundle, or in the project before `release`: every tensor, every key of
every JSON file.
"""

import shutil
from pathlib import Path

import pytest

from primorl.base.files import read_json
from primorl.release.contents import EVALUATION, LEDGER, MODEL, POLICY
from tests.release.bundles import (
    accepted,
    at,
    changed_leaves,
    impossible_tensors,
    leaves,
    moved_tensors,
    refusal,
    relist,
    removed_keys,
    renew_everything,
)

pytestmark = pytest.mark.usefixtures("accounted_once")

JSON = (*MODEL[1:], *POLICY[1:], LEDGER, EVALUATION)
# What nothing in a bundle can show about a stranger who renews every digest along the chain and
# makes the cards again. The bundle agrees with itself then. Only its maker's signature tells
# (`tests/release/test_signature.py`).
NEEDS_A_SIGNATURE = {
    # Numbers that training could have found; a change by chance breaks the digests.
    *(f"{file}: layers" for file in (MODEL[0], POLICY[0])),
    *(f"{MODEL[0]}: target_{part}" for part in ("mean", "scale")),
    *(
        f"{MODEL[1]}: {key}"
        for key in ("log_variance_low", "log_variance_high", "reward_low", "reward_high", "angles")
    ),
    *(f"{MODEL[1]}: {key}" for key in ("engine_version", "public_loss", "warnings")),
    # How the policy was trained, which its weights do not tell.
    *(f"{POLICY[1]}: {key}" for key in ("epochs", "uncertainty", "penalty")),
    # Public facts of the data, C, and names and sensitivities of queries, of which neither ε nor
    # the weights depend in a way that could be seen.
    *(
        f"{MODEL[2]}: {key}"
        for key in ("units", "public_units", "public_assumptions", "clipping_norm", "clipping")
    ),
    f"{MODEL[2]}: queries",
    # The accountant's version: an ε that claims another one may be 0.1% lower than ours.
    *(f"{name}: accountant" for name in (MODEL[2], LEDGER)),
    # Names and days of charges; their events, ε and number are accounted again.
    f"{LEDGER}: records",
    f"{LEDGER}: budget_changes",
    # The returns, which a simulator measured, and their dataset's name.
    *(
        f"{EVALUATION}: {key}"
        for key in ("dataset", "return_mean", "return_ci95", "normalized_score", "episodes")
    ),
    # What the public trajectories earn; they are not in the bundle.
    *(f"{EVALUATION}: public_{key}" for key in ("return_mean", "return_ci95", "trajectories")),
}


def test_every_edit_is_refused_when_the_stranger_lists_the_hashes_anew(
    original: Path, tmp_path: Path
) -> None:
    """Nothing is accepted: no list of exceptions.

    Twin: without an edit the bundle is sound, digests renewed or not.
    """
    edits = [
        *moved_tensors(original),
        *changed_leaves(original, JSON),
        *removed_keys(original, JSON),
    ]
    assert len(edits) > 150
    assert accepted(original, tmp_path, edits, relist) == []
    untouched = shutil.copytree(original, tmp_path / "copy")
    assert refusal(untouched) is None
    assert refusal(untouched, renew_everything) is None


def test_from_a_stranger_who_renews_every_digest_only_these_edits_need_a_signature(
    original: Path, tmp_path: Path
) -> None:
    """The list is exact: an edit that is noticed without a signature must not stand in it."""
    edits = [*moved_tensors(original)]
    for name, change in changed_leaves(original, (*MODEL[1:], POLICY[1], LEDGER, EVALUATION)):
        if "sha256" not in name and "made" not in name:
            edits.append((name, change))
    found = accepted(original, tmp_path, edits, renew_everything)
    assert {
        ": ".join(name.replace(": layers.", ": layers: ").split(": ")[:2]) for name in found
    } == NEEDS_A_SIGNATURE


def test_impossible_numbers_and_a_lower_epsilon_are_refused_with_every_digest_renewed(
    original: Path, tmp_path: Path
) -> None:
    """NaN, infinity, scales that are not positive, swapped bounds; 0.1% off
    at every ε and δ.
    """
    edits = [*impossible_tensors(original)]
    for name in (MODEL[2], LEDGER):
        for path, value in leaves(read_json(original / name)):
            curve = path[0] in ("profile", "attacks", "groups") and path[1] % 5
            if path[-1] in ("epsilon", "epsilon_rdp", "delta") and value and not curve:
                by_filter = path in (
                    ("spent_on_dataset", "epsilon"),
                    ("epsilon",) if name == LEDGER else (),
                )
                for factor in (0.999, 1 - (3e-5 if by_filter else 1e-8), 1.001):
                    edits.append((f"{name}: {path} × {factor}", at(name, path, value * factor)))
    assert accepted(original, tmp_path, edits, renew_everything) == []
