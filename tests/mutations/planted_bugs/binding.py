"""Planted bugs of what binds a statement to the bytes it speaks of, and of what a stranger's bundle may claim."""

from tests.mutations.planted_bugs.bug import Bug

_BINDING = "tests/release/test_binding.py"
_EDITS = "tests/release/test_every_edit.py"
_RENEWED = "tests/release/test_renewed_edits.py"
_AT_HOME = "tests/release/test_every_edit_at_home.py"
_SIGNATURE = "tests/release/test_signature.py"
_CHAIN, _ACCOUNTED = "primorl/release/provenance.py", "primorl/release/accounted.py"
_SOUND, _MAKING = "primorl/release/soundness.py", "primorl/release/making.py"

BINDING = [
    Bug(
        "release-model-unbound",
        "release",
        _CHAIN,
        "        if found.get(name) != made.get(name):\n",
        "        if False:\n",
        "any model lies under a private run's statement",
        (_BINDING,),
    ),
    Bug(
        "release-policy-unbound",
        "release",
        _CHAIN,
        "            if getattr(speaks, key) != digest:\n",
        "            if False:\n",
        "a policy of another model, or made without privacy, leaves",
        (_BINDING,),
    ),
    Bug(
        "release-other-units",
        "release",
        _MAKING,
        "        if found != allowed:\n",
        "        if False:\n",
        "the unit and K of a statement are not those of the data",
        (_BINDING,),
    ),
    Bug(
        "ledger-second-draw",
        "release",
        "primorl/privacy/ledger/ledger.py",
        "                charge.refuse_another_draw(made)\n",
        "                pass\n",
        "one charge pays for several models",
        (_BINDING,),
    ),
    Bug(
        "release-outputs-unrecorded",
        "release",
        "primorl/release/recorded.py",
        "if (digest := listed.get(path.as_posix())) is not None and digest != _digest(path):",
        "if False:",
        "a return that was edited in the summary leaves",
        (_AT_HOME,),
    ),
    Bug(
        "release-card-believed",
        "release",
        "primorl/release/bundle.py",
        "        if found != made:\n",
        "        if False:\n",
        "a card says another ε than the statement",
        (_EDITS, _RENEWED, "tests/release/test_received_bundle.py"),
    ),
    Bug(
        "release-small-understatement",
        "release",
        _ACCOUNTED,
        "rel_tol=ROUNDING, abs_tol=1e-12)",
        "rel_tol=TOLERANCE)",
        "an ε that is 0.1% too low is believed",
        (_EDITS, _RENEWED),
    ),
    Bug(
        "release-records-believed",
        "release",
        _ACCOUNTED,
        '        _refuse_unless_equal(path, f"records.{place}.epsilon", record.epsilon, alone, ledger)\n',
        "        assert alone is not None\n",
        "the ε of single charges is not accounted again",
        (_EDITS, _RENEWED),
    ),
    Bug(
        "release-swapped-bounds",
        "release",
        _SOUND,
        "        if bool(((low > high) if equal else (low >= high)).any()):\n",
        "        if False:\n",
        "bounds that are swapped leave",
        (_EDITS, _RENEWED),
    ),
    Bug(
        "release-overflowing-weights",
        "release",
        _SOUND,
        "    if not largest <= _LARGEST:\n",
        "    if False:\n",
        "weights whose outputs are not finite leave",
        (_EDITS, _RENEWED),
    ),
    Bug(
        "release-signature-unverified",
        "release",
        "primorl/release/signature.py",
        "        key.verify((folder / SIGNATURE).read_bytes(), (folder / MANIFEST).read_bytes())\n",
        "        pass\n",
        "anybody's signature is taken for the maker's",
        (_SIGNATURE,),
    ),
]
