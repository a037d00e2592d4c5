"""Bundles of neighbouring data differ only through the mechanism."""

import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from primorl.base.errors import PipelineError
from primorl.base.files import read_json
from primorl.release import bundle
from primorl.release.contents import CARDS, EVALUATION, FILES, LEDGER, MANIFEST, MODEL
from tests.data.builders import episode, snapshot
from tests.projects import inside
from tests.release.bundles import edit, made, relist
from tests.release.released_project import EPISODES, run_stages, tiny_params

NOISE = 50.0
BY_THE_MECHANISM = {
    *(f"{name}: layers" for name in ("dynamics/model.safetensors", "policy/policy.safetensors")),
    # A policy of other weights earns other returns, and other files have other hashes.
    *(
        f"{card}: {words}"
        for card in ("card.md", "card.html")
        for words in ("Mean return in", "Score on the scale", "the policy, in", "The policy's int", "The two interv")
    ),
    *(f"{MANIFEST}: files.{name}" for name in (*FILES,)),
    *(f"{card}: {name}" for card in CARDS for name in FILES - {*CARDS}),
    *(f"{LEDGER}: records.0.made.{Path(name).name}" for name in MODEL),
    *(f"{place}: {key}_sha256" for place in ("policy/config.json", EVALUATION) for key in ("model", "policy")),
    *(f"{EVALUATION}: {key}" for key in ("return_mean", "return_ci95.0", "return_ci95.1", "normalized_score")),
}
# Chance names a charge. The fingerprint is keyed: without the secret, which stays at home, nobody can compute which of
# two known datasets it belongs to. (That two releases used equal data can be seen; docs/privacy.md says so.)
NAMES = {
    *(f"{part}/privacy.json: {key}" for part in ("dynamics", "policy") for key in ("charge", "dataset_fingerprint")),
    f"{LEDGER}: dataset_fingerprint",
    f"{LEDGER}: records.0.id",
    *(f"{card}: {words}" for card in ("card.md", "card.html") for words in ("charge", "keyed fingerprint of the data")),
}


def bundle_of(folder: Path, episodes: tuple[Any, ...]) -> Path:
    run_stages(folder, tiny_params(noise_multiplier=NOISE), episodes, seeded=True)
    with inside(folder):
        made(void_ok=True)
    return folder / "out"


@pytest.fixture(scope="module")
def of_this(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("this"), EPISODES)


@pytest.fixture(scope="module")
def of_one_exchanged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One private unit is somebody else's, just as long: the same K, and the fixed entropy falls the same way."""
    other = episode(len(EPISODES[-1].rewards), seed=999)
    return bundle_of(tmp_path_factory.mktemp("exchanged"), (*EPISODES[:-1], other))


def test_bundles_of_data_that_differ_in_one_unit_differ_only_through_the_mechanism(
    of_this: Path, of_one_exchanged: Path
) -> None:
    """With the noise fixed, everything but the weights and what follows from them is equal, sizes included."""
    assert read_json(of_this / "policy/privacy.json")["void"] == ["noise is seeded"]
    found = differences(of_this, of_one_exchanged)
    assert found - BY_THE_MECHANISM - NAMES == set()
    assert "dynamics/model.safetensors: layers" in found  # the unit took part: otherwise this compares nothing
    for name in FILES - {"card.md", "card.html", EVALUATION}:  # digits of a return are as many as they are
        assert (of_this / name).stat().st_size == (of_one_exchanged / name).stat().st_size


@pytest.mark.parametrize("leak", ["sha256", "first_digits"])
def test_a_planted_leak_is_seen_by_the_comparison_and_refused_by_the_check(
    of_this: Path, of_one_exchanged: Path, tmp_path: Path, leak: str
) -> None:
    """The twin: an unkeyed hash, then a number that follows from the private rows, in config.json."""
    for name, original in (("this", of_this), ("other", of_one_exchanged)):
        shutil.copytree(original, tmp_path / name)
        private = (original.parent / "data/partitions/private/part-00000.parquet").read_bytes()
        digest = hashlib.sha256(private).hexdigest()
        told = {"sha256": digest, "first_digits": int(digest[:8], 16)}[leak]
        edit(tmp_path / name / "dynamics/config.json", **{leak: told})
        relist(tmp_path / name)
    found = differences(tmp_path / "this", tmp_path / "other")
    assert found - BY_THE_MECHANISM - NAMES == {f"dynamics/config.json: {leak}"}
    with pytest.raises(PipelineError, match=rf"config.json: not as declared: {leak}"):
        bundle.check(tmp_path / "this", void_ok=True)


def differences(one: Path, other: Path) -> set[str]:
    """Where two bundles differ: JSON keys, tensors, lines of the cards by their first words."""
    assert set(snapshot(one)) == set(snapshot(other))
    found: set[str] = set()
    for name in sorted(FILES | {MANIFEST}):
        if name.endswith(".safetensors"):
            ours, theirs = load_file(one / name), load_file(other / name)
            assert {key: value.shape for key, value in ours.items()} == {key: v.shape for key, v in theirs.items()}
            found |= {f"{name}: {key.partition('.')[0]}" for key in ours if not torch.equal(ours[key], theirs[key])}
        elif name.endswith(".json"):
            first, second = flat(read_json(one / name)), flat(read_json(other / name))
            found |= {f"{name}: {key}" for key in first.keys() | second.keys() if first.get(key) != second.get(key)}
        else:
            lines = zip(
                *((folder / name).read_text(encoding="utf-8").splitlines() for folder in (one, other)), strict=True
            )
            known = (*BY_THE_MECHANISM, *NAMES)
            starts = [entry.removeprefix(f"{name}: ") for entry in known if entry.startswith(name)]
            for line, twin in lines:
                if line != twin:
                    plain = re.sub(r"^(- |\| |<li>|<tr><th>)", "", line)
                    found.add(f"{name}: {next((start for start in starts if plain.startswith(start)), plain)}")
    return found


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of a JSON value by their dotted path; file names keep their dots."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        return {key: leaf for name, value in items for key, leaf in flat(value, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): content}
