"""Planted bugs of the flow of private data."""

from tests.mutations.planted_bugs.bug import Bug

_COHORT = "tests/training/test_cohort.py"
_LOCAL = "tests/training/test_local_update.py"
_TRAINING = "tests/training/test_training.py"
_STAGE = "tests/pipeline/test_train_model.py"
_PAID = "tests/pipeline/test_train_model_payment.py"

DATA_FLOW = [
    Bug(
        "flow-private-normaliser",
        "data flow",
        "primorl/training/training.py",
        "    normaliser = setup.make_normaliser(public, now.answers)\n",
        "    import torch\n\n    first = torch.zeros(source.units, 1, dtype=torch.int64)\n"
        "    rows = source.transitions(torch.arange(source.units), first)\n"
        "    normaliser = setup.make_normaliser(tuple(part.flatten(0, 1) for part in rows), now.answers)\n",
        "the normaliser is fitted to private rows",
        (_TRAINING, _STAGE, _PAID),
    ),
    Bug(
        "flow-early-stopping-on-private-loss",
        "data flow",
        "primorl/training/training.py",
        "    evaluate = None\n    if public is not None:\n",
        "    evaluate = None\n    import torch\n\n    first = torch.zeros(plan.units, 1, dtype=torch.int64)\n"
        "    rows = source.transitions(torch.arange(plan.units), first) if source else None\n"
        "    public = tuple(part.flatten(0, 1) for part in rows) if rows else public\n    if public is not None:\n",
        "evaluations, and so stopping and what is released, judge private rows",
        (_TRAINING,),
    ),
    Bug(
        "flow-bounds-from-private-data",
        "data flow",
        "primorl/setup/training.py",
        "bounds=model_bounds(params, manifest, public),",
        'bounds=model_bounds(params, manifest, UnitStore.open(__import__("pathlib").Path("data/partitions/private"))),',
        "the model's bounds are private extremes",
        (
            _STAGE,
            _PAID,
        ),
    ),
    Bug(
        "flow-padding-counts",
        "data flow",
        "primorl/training/cohort.py",
        "own = torch.arange(batches * batch_size, device=lengths.device) < lengths.unsqueeze(1)",
        "own = torch.arange(batches * batch_size, device=lengths.device) < torch.full_like(lengths, most).unsqueeze(1)",
        "the longest unit of a chunk decides how many rows the others train on",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-padding-is-anothers-row",
        "data flow",
        "primorl/trajectories/storage/memory.py",
        "self._starts[units, None] + torch.minimum(steps, self._lengths[units, None] - 1)",
        "torch.clamp(self._starts[units, None] + steps, max=len(self._places) - 1)",
        "steps past a unit's end read the next unit's rows",
        ("tests/trajectories/storage/test_store.py",),
    ),
    Bug(
        "flow-local-order-seeded",
        "data flow",
        "primorl/training/cohort.py",
        "keys = uniforms(entropy, (len(lengths), most)).to(lengths.device)",
        "keys = torch.rand(len(lengths), most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)",
        "local orders are predictable and depend on who else is there",
        (_COHORT,),
    ),
    Bug(
        "flow-cap-depends-on-others",
        "data flow",
        "primorl/training/cohort.py",
        "    most = int(lengths.max()) if len(units) else 0\n",
        "    most = int(lengths.max()) if len(units) else 0\n"
        "    max_transitions = int(lengths.min()) if len(units) else None\n",
        "a unit's rows are cut to the shortest one's length",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-weights-depend-on-others",
        "data flow",
        "primorl/training/cohort.py",
        "weights = own / own.sum(-1, keepdim=True).clamp(min=1)",
        "weights = own / own.sum(-1, keepdim=True).float().mean().clamp(min=1)",
        "a step's mean is over the cohort's average batch",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-policy-reads-data",
        "data flow",
        "primorl/policy/rollouts.py",
        "import torch\n",
        "import torch\n\nfrom primorl.trajectories.storage import schema  # noqa: F401\n",
        "the policy's code can reach the data",
        ("tests/test_imports.py",),
    ),
    Bug(
        "flow-policy-stage-depends-on-data",
        "data flow",
        "dvc.yaml",
        "    cmd: python -m pipeline.optimize_policy\n    deps:\n",
        "    cmd: python -m pipeline.optimize_policy\n    deps:\n      - data/partitions/private\n",
        "a second door to the private partition",
        ("tests/test_dvc_graph.py",),
    ),
    Bug(
        "flow-unit-in-both-partitions",
        "data flow",
        "primorl/trajectories/partitioning.py",
        "kept = table.filter(pc.invert(mask))",
        "kept = table",
        "public units stay among the private ones",
        ("tests/trajectories/test_partitioning.py",),
    ),
    Bug(
        "flow-split-depends-on-position",
        "data flow",
        "primorl/trajectories/consent.py",
        "[hashed(prefix + unit.encode()).digest()[:size] for unit in units.to_pylist()]",
        "[hashed(prefix + str(i).encode()).digest()[:size] for i, unit in enumerate(units.to_pylist())]",
        "one unit's presence moves others between the partitions",
        ("tests/trajectories/test_partitioning.py",),
    ),
    Bug(
        "flow-fingerprint-without-key",
        "data flow",
        "primorl/trajectories/identity/fingerprint.py",
        "return hmac.new(secret, _LABEL + content.digest(), hashlib.sha256).hexdigest()",
        "return content.hexdigest()",
        "what is published tells neighbouring datasets apart",
        ("tests/trajectories/identity/test_fingerprint.py",),
    ),
    Bug(
        "flow-split-inside-a-unit",
        "data flow",
        "primorl/trajectories/storage/rows.py",
        "unit_starts = np.cumsum(own_lengths) - own_lengths",
        "unit_starts = np.append(np.cumsum(own_lengths) - own_lengths, own_lengths.sum() - 1)",
        "one person's rows are counted as two units",
        ("tests/trajectories/storage/test_store.py",),
    ),
    Bug(
        "flow-next-observation-is-anothers",
        "data flow",
        "primorl/trajectories/storage/rows.py",
        "(after[:-1].view(np.int32) != observation[1:].view(np.int32)).any(axis=1)",
        "False",
        "the outcome of a trajectory's last step is the start of another person's trajectory",
        ("tests/trajectories/storage/test_store.py",),
    ),
    Bug(
        "flow-half-a-person-is-public",
        "data flow",
        "primorl/trajectories/sources/tabular/transitions.py",
        "np.flatnonzero(differs & ~begins)",
        "np.flatnonzero(differs & begins & ~begins)",
        "one row's consent speaks for rows that say otherwise",
        ("tests/trajectories/test_consent.py",),
    ),
    Bug(
        "flow-consent-of-who-withdrew",
        "data flow",
        "primorl/trajectories/ingestion.py",
        "[withdrawals.drop(table) for table in reader.consent]",
        "reader.consent",
        "ids of people who withdrew stay in the dataset",
        ("tests/trajectories/test_consent.py",),
    ),
]
