"""The bugs that `benchmarks.mutations` plants: one small replacement in the source each."""

from dataclasses import dataclass

_ACCOUNTING = "tests/privacy/test_accounting.py"
_CANARIES = "tests/privacy/test_canaries.py"
_CLIPPING = "tests/privacy/test_clipping.py"
_ENTROPY = "tests/privacy/test_entropy.py"
_PLAN = "tests/privacy/test_plan.py"
_SAMPLING = "tests/privacy/test_sampling.py"
_COHORT = "tests/dynamics/test_cohort.py"
_LOCAL = "tests/dynamics/test_local_update.py"
_TRAINING = "tests/dynamics/test_training.py"
_CHECKPOINT = "tests/dynamics/test_checkpoint.py"
_STAGE = "tests/stages/test_train_model.py"
_MOPO = "tests/stages/test_optimize_mopo.py"
_LEDGER = "tests/privacy/test_ledger.py"
_ANCHOR = "tests/privacy/test_ledger_anchor.py"
_CHAIN = "tests/privacy/test_ledger_chain.py"
_RACES = "tests/privacy/test_ledger_races.py"
_RELEASE = "tests/test_release.py"
_SECURITY = "tests/test_security.py"


@dataclass(frozen=True)
class Bug:
    """One way to break a promise.

    Attributes:
        name: to ask for it by.
        family: what part of the promise.
        file: where.
        old: text that is in the file exactly once.
        new: what replaces it.
        breaks: what is wrong then.
        tests: files of which at least one must fail.
    """

    name: str
    family: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]


_NOISE = [
    Bug(
        "noise-half",
        "noise",
        "pipeline/privacy/plan.py",
        "scale = self.noise_multiplier * self.clip.sensitivity",
        "scale = 0.5 * self.noise_multiplier * self.clip.sensitivity",
        "half of what is accounted",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-none",
        "noise",
        "pipeline/privacy/plan.py",
        "total = [part + draw.view_as(part) for",
        "total = [part + 0 * draw.view_as(part) for",
        "drawn and not added",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-missing-on-one-member",
        "noise",
        "pipeline/privacy/plan.py",
        "total = [part + draw.view_as(part) for",
        "total = [torch.cat((part[:1], (part + draw.view_as(part))[1:])) for",
        "the first member gets none",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-for-one-member",
        "noise",
        "pipeline/privacy/plan.py",
        "scale = self.noise_multiplier * self.clip.sensitivity",
        "scale = self.noise_multiplier * self.clip.bound",
        "scaled to a member's share C/√N of the clip",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-shared-by-members",
        "noise",
        "pipeline/privacy/plan.py",
        "total = [part + draw.view_as(part) for",
        "total = [part + draw.view_as(part)[:1] for",
        "one draw for all members",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-replayed",
        "noise",
        "pipeline/privacy/entropy.py",
        "os.urandom(32)",
        'self.__dict__.setdefault("key", os.urandom(32))',
        "the same key for every draw: each round replays the last one's noise",
        (_ENTROPY, _PLAN, _CANARIES),
    ),
    Bug(
        "noise-from-a-fixed-seed",
        "noise",
        "pipeline/privacy/entropy.py",
        "os.urandom(32)",
        'b"a seed from the config, 32 bytes"',
        "a key that whoever has the source can read",
        (_ENTROPY, _CANARIES),
    ),
    Bug(
        "noise-from-torch",
        "noise",
        "pipeline/privacy/plan.py",
        "normals(self.entropy, sum(sizes)) * scale",
        "torch.randn(sum(sizes), dtype=torch.float64) * scale",
        "torch's generator, which a seed reaches",
        (_PLAN, _STAGE),
    ),
    Bug(
        "noise-in-half-precision",
        "noise",
        "pipeline/privacy/plan.py",
        "(normals(self.entropy, sum(sizes)) * scale).to(total[0].device)",
        "(normals(self.entropy, sum(sizes)) * scale).half().to(total[0].device)",
        "rounded to float16 before it is added",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-after-rounding",
        "noise",
        "pipeline/privacy/plan.py",
        "total = [part + draw.view_as(part) for",
        "total = [part.float() + draw.view_as(part).float() for",
        "added in float32",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "noise-of-one-draw",
        "noise",
        "pipeline/privacy/entropy.py",
        "_DRAWS = 4",
        "_DRAWS = 1",
        "a single Box-Muller draw, whose low bits show what it was added to",
        (_ENTROPY,),
    ),
    Bug(
        "sum-in-float32",
        "noise",
        "pipeline/dynamics/local_update.py",
        ".sum(0, dtype=torch.float64)",
        ".sum(0)",
        "the private sum in single precision",
        (_LOCAL,),
    ),
]

_CLIP = [
    Bug(
        "clip-none",
        "clip",
        "pipeline/privacy/clipping.py",
        "return (self.bound * _MARGIN / norms).clamp(max=1.0).expand_as(squares)",
        "return torch.ones_like(squares)",
        "updates are not clipped",
        (_LOCAL, _CANARIES),
    ),
    Bug(
        "clip-each-member-to-the-whole",
        "clip",
        "pipeline/privacy/clipping.py",
        "return self.clipping_norm / math.sqrt(pieces)",
        "return self.clipping_norm",
        "C instead of C/√N",
        (_LOCAL, _CANARIES),
    ),
    Bug(
        "clip-layers-to-a-members-share",
        "clip",
        "pipeline/privacy/clipping.py",
        'self.members * (self.layers if self.mode == "per_layer" else 1)',
        "self.members",
        "per_layer: C/√N instead of C/√(NL)",
        (_LOCAL, _CANARIES),
    ),
    Bug(
        "clip-passes-nan",
        "clip",
        "pipeline/privacy/clipping.py",
        "return [torch.where(sound.view(-1, *[1] * (u.dim() - 1)), u, torch.zeros_like(u)) for u in updates]",
        "return updates",
        "updates that are not finite reach the sum",
        (_LOCAL, _CANARIES),
    ),
    Bug(
        "clip-without-margin",
        "clip",
        "pipeline/privacy/clipping.py",
        "_MARGIN = 1 - 2.0**-16",
        "_MARGIN = 1",
        "rounding carries updates above the bound",
        (_LOCAL,),
    ),
    Bug(
        "clip-norm-in-float32",
        "clip",
        "pipeline/dynamics/local_update.py",
        "torch.linalg.vector_norm(moved, dim=(1, 2), dtype=torch.float64)",
        "torch.linalg.vector_norm(moved, dim=(1, 2))",
        "small entries of wide layers vanish from the norm",
        (_LOCAL,),
    ),
    Bug(
        "clip-sensitivity-of-a-member",
        "clip",
        "pipeline/privacy/clipping.py",
        'return self.clipping_norm if relation == "add_or_remove_one" else 2 * self.clipping_norm',
        'return self.bound if relation == "add_or_remove_one" else 2 * self.clipping_norm',
        "states C/√N as the sensitivity of the whole",
        (_PLAN, _LOCAL, _CANARIES),
    ),
    Bug(
        "clip-sensitivity-of-replacing",
        "clip",
        "pipeline/privacy/clipping.py",
        'if relation == "add_or_remove_one" else 2 * self.clipping_norm',
        'if relation == "add_or_remove_one" else self.clipping_norm',
        "states C where one unit is replaced, not 2C",
        (_CLIPPING,),
    ),
    Bug(
        "clip-again-on-padding",
        "clip",
        "pipeline/dynamics/local_update.py",
        "None if all_move[j] else moving, clip)",
        "None, clip)",
        "steps of padding move a unit: others' lengths reach its update",
        (_LOCAL,),
    ),
]

_SAMPLER = [
    Bug(
        "sampling-fixed-size",
        "sampling",
        "pipeline/privacy/sampling.py",
        "return torch.from_numpy(np.flatnonzero(integers(entropy, units) < threshold))",
        "drawn = integers(entropy, units).argsort()[: round(self.sampling_probability * units)]\n"
        "        return torch.from_numpy(np.sort(drawn))",
        "cohorts of qK, accounted as Poisson",
        (_SAMPLING,),
    ),
    Bug(
        "sampling-everyone",
        "sampling",
        "pipeline/privacy/sampling.py",
        "if self.sampling_probability >= 1:",
        "if self.sampling_probability > 0:",
        "everybody joins while q is charged",
        (_SAMPLING, _CANARIES),
    ),
    Bug(
        "sampling-biased-coin",
        "sampling",
        "pipeline/privacy/sampling.py",
        "int(self.sampling_probability * 2.0**64)",
        "int(min(1.4 * self.sampling_probability, 0.99) * 2.0**64)",
        "units join two fifths more often than is charged",
        (_SAMPLING, _CANARIES),
    ),
    Bug(
        "sampling-shared-coins",
        "sampling",
        "pipeline/privacy/sampling.py",
        "integers(entropy, units) < threshold",
        "np.repeat(integers(entropy, units), 2)[:units] < threshold",
        "neighbouring units share a coin",
        (_SAMPLING,),
    ),
    Bug(
        "sampling-one-cohort",
        "sampling",
        "pipeline/privacy/plan.py",
        "return PoissonSampler(self.sampling_probability).sample(self.units, self.entropy)",
        'return self.__dict__.setdefault("kept", '
        "PoissonSampler(self.sampling_probability).sample(self.units, self.entropy))",
        "the first round's cohort in every round",
        (_PLAN, _SAMPLING, _CANARIES, _TRAINING),
    ),
    Bug(
        "sampling-from-numpy",
        "sampling",
        "pipeline/privacy/sampling.py",
        "integers(entropy, units) < threshold",
        "np.random.randint(0, 2**64, units, np.uint64) < threshold",
        "NumPy's generator, which a seed reaches",
        (_SAMPLING, _PLAN, _STAGE),
    ),
    Bug(
        "sampling-skips-empty-rounds",
        "sampling",
        "pipeline/privacy/plan.py",
        "if self.is_private:\n            scale",
        "if self.is_private and any(bool(part.any()) for part in total):\n            scale",
        "a round that nobody joined releases zeros",
        (_PLAN, _TRAINING),
    ),
]

_DENOMINATOR = [
    Bug(
        "denominator-realised",
        "denominator",
        "pipeline/dynamics/training.py",
        "            whole += part\n    return total\n",
        "            whole += part\n    return [t * (plan.expected_cohort / max(1, len(cohort))) for t in total]\n",
        "the realised cohort size",
        (_LOCAL, _TRAINING),
    ),
]

_ACCOUNTS = [
    Bug(
        "accounting-half-q",
        "accounting",
        "pipeline/privacy/accounting.py",
        "dp_event.PoissonSampledDpEvent(sampling_probability, gaussian)",
        "dp_event.PoissonSampledDpEvent(sampling_probability / 2, gaussian)",
        "the accountant is told q/2",
        (_ACCOUNTING, _CANARIES),
    ),
    Bug(
        "accounting-one-round-less",
        "accounting",
        "pipeline/privacy/accounting.py",
        "gaussian), rounds)",
        "gaussian), max(1, rounds - 1))",
        "the accountant is told T - 1",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-wrong-delta",
        "accounting",
        "pipeline/privacy/accounting.py",
        "compose(event).get_epsilon(delta))\n    return Spent",
        "compose(event).get_epsilon(10 * delta))\n    return Spent",
        "ε is read at ten times the stated δ",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-swapped",
        "accounting",
        "pipeline/privacy/accounting.py",
        "return Spent(tight, stated, delta)",
        "return Spent(loose, tight, delta)",
        "RDP's ε is stated as PLD's and the other way round",
        (_ACCOUNTING, _PLAN),
    ),
    Bug(
        "accounting-other-relation",
        "accounting",
        "pipeline/privacy/accounting.py",
        "NeighboringRelation.ADD_OR_REMOVE_ONE\n",
        "NeighboringRelation.REPLACE_ONE\n",
        "ε of another neighbouring relation than is named",
        (_ACCOUNTING,),
    ),
    Bug(
        "accounting-more-noise-than-added",
        "accounting",
        "pipeline/privacy/plan.py",
        "event = accounting.training_event(self.sampling_probability, self.noise_multiplier, count)",
        "event = accounting.training_event(self.sampling_probability, 2 * self.noise_multiplier, count)",
        "the stated ε is that of twice the noise",
        (_PLAN, _CANARIES),
    ),
    Bug(
        "accounting-event-of-another-plan",
        "accounting",
        "pipeline/privacy/plan.py",
        "return accounting.training_event(self.sampling_probability, self.noise_multiplier, self.rounds)",
        "return accounting.training_event(self.sampling_probability, self.noise_multiplier, 1)",
        "the event that is stated and charged is not the one ε is of",
        (_PLAN, _STAGE),
    ),
]

_DATA_FLOW = [
    Bug(
        "flow-private-normaliser",
        "data flow",
        "pipeline/dynamics/training.py",
        "    normaliser = Normaliser.from_public(inputs, targets)\n",
        "    everybody = torch.arange(plan.units)\n"
        "    rows = source.transitions(everybody, torch.zeros(plan.units, 1, dtype=torch.int64)) if source else None\n"
        "    seen = [part.flatten(0, 1) for part in rows] if rows else [inputs, targets]\n"
        "    normaliser = Normaliser.from_public(*seen)\n",
        "the normaliser is fitted to private rows",
        (_TRAINING, _STAGE),
    ),
    Bug(
        "flow-early-stopping-on-private-loss",
        "data flow",
        "pipeline/dynamics/training.py",
        "    look_at = PublicLook(shape, normaliser, inputs, targets)\n",
        "    everybody = torch.arange(plan.units)\n"
        "    rows = source.transitions(everybody, torch.zeros(plan.units, 1, dtype=torch.int64)) if source else None\n"
        "    seen = [part.flatten(0, 1) for part in rows] if rows else [inputs, targets]\n"
        "    look_at = PublicLook(shape, normaliser, *seen)\n",
        "looks, and so stopping and what is released, judge private rows",
        (_TRAINING, _STAGE),
    ),
    Bug(
        "flow-bounds-from-private-data",
        "data flow",
        "pipeline/stages/train_model.py",
        "bounds = _bounds(params, manifest, public)",
        'bounds = _bounds(params, manifest, UnitStore.open(PARTITIONS / "private"))',
        "the model's bounds are private extremes",
        (_STAGE,),
    ),
    Bug(
        "flow-padding-counts",
        "data flow",
        "pipeline/dynamics/cohort.py",
        "own = torch.arange(batches * batch_size, device=lengths.device) < lengths.unsqueeze(1)",
        "own = torch.arange(batches * batch_size, device=lengths.device) < torch.full_like(lengths, most).unsqueeze(1)",
        "the longest unit of a chunk decides how many rows the others train on",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-padding-is-anothers-row",
        "data flow",
        "pipeline/trajectories/store.py",
        "self._starts[units, None] + torch.minimum(steps, self._lengths[units, None] - 1)",
        "torch.clamp(self._starts[units, None] + steps, max=len(self._inputs) - 1)",
        "steps past a unit's end read the next unit's rows",
        ("tests/trajectories/test_store.py",),
    ),
    Bug(
        "flow-local-order-seeded",
        "data flow",
        "pipeline/dynamics/cohort.py",
        "keys = uniforms(entropy, (len(lengths), most)).to(lengths.device)",
        "keys = torch.rand(len(lengths), most, generator=torch.Generator().manual_seed(0), dtype=torch.float64)",
        "local orders are predictable and depend on who else is there",
        (_COHORT,),
    ),
    Bug(
        "flow-cap-depends-on-others",
        "data flow",
        "pipeline/dynamics/cohort.py",
        "    most = int(lengths.max()) if len(units) else 0\n",
        "    most = int(lengths.max()) if len(units) else 0\n"
        "    max_transitions = int(lengths.min()) if len(units) else None\n",
        "a unit's rows are cut to the shortest one's length",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-weights-depend-on-others",
        "data flow",
        "pipeline/dynamics/cohort.py",
        "weights = own / own.sum(-1, keepdim=True).clamp(min=1)",
        "weights = own / own.sum(-1, keepdim=True).float().mean().clamp(min=1)",
        "a step's mean is over the cohort's average batch",
        (_COHORT, _LOCAL),
    ),
    Bug(
        "flow-policy-reads-data",
        "data flow",
        "pipeline/policy/rollouts.py",
        "import torch\n",
        "import torch\n\nfrom pipeline.trajectories import schema  # noqa: F401\n",
        "the policy's code can reach the data",
        ("tests/test_imports.py",),
    ),
    Bug(
        "flow-policy-stage-depends-on-data",
        "data flow",
        "dvc.yaml",
        "    cmd: python -m pipeline.stages.optimize_policy\n    deps:\n",
        "    cmd: python -m pipeline.stages.optimize_policy\n    deps:\n      - data/partitions/private\n",
        "a second door to the private partition",
        ("tests/test_dvc_graph.py",),
    ),
    Bug(
        "flow-unit-in-both-partitions",
        "data flow",
        "pipeline/trajectories/partitioning.py",
        "kept = table.filter(pc.invert(mask))",
        "kept = table",
        "public units stay among the private ones",
        ("tests/trajectories/test_partitioning.py",),
    ),
    Bug(
        "flow-split-depends-on-position",
        "data flow",
        "pipeline/trajectories/partitioning.py",
        "[is_public(unit, public_fraction, salt) for unit in units.dictionary.to_pylist()]",
        "[is_public(str(i), public_fraction, salt) for i, unit in enumerate(units.dictionary.to_pylist())]",
        "one unit's presence moves others between the partitions",
        ("tests/trajectories/test_partitioning.py",),
    ),
    Bug(
        "flow-fingerprint-without-key",
        "data flow",
        "pipeline/trajectories/fingerprint.py",
        "return hmac.new(secret, _LABEL + content.digest(), hashlib.sha256).hexdigest()",
        "return content.hexdigest()",
        "what is published tells neighbouring datasets apart",
        ("tests/trajectories/test_fingerprint.py",),
    ),
    Bug(
        "flow-split-inside-a-unit",
        "data flow",
        "pipeline/trajectories/store.py",
        "        unit_starts = units.starts()\n",
        "        unit_starts = np.union1d(units.starts(), units.starts()[-1:] + 1)\n",
        "one person's rows are counted as two units",
        ("tests/trajectories/test_store.py",),
    ),
]

_STATEMENTS = [
    Bug(
        "statement-void-omitted",
        "statement",
        "pipeline/privacy/plan.py",
        "return [reason for reason, holds in reasons.items() if holds]",
        "return []",
        "reasons not to rely on it are left out",
        (_PLAN, _STAGE),
    ),
    Bug(
        "statement-always-private",
        "statement",
        "pipeline/privacy/plan.py",
        '"private": self.is_private,',
        '"private": True,',
        "says private where nothing is guaranteed",
        (_PLAN, _STAGE),
    ),
    Bug(
        "statement-larger-delta",
        "statement",
        "pipeline/privacy/plan.py",
        '"delta": self.delta,',
        '"delta": self.delta / 10,',
        "states a δ below the one ε is of",
        (_PLAN, _STAGE),
    ),
]

_PAYING = [
    Bug(
        "ledger-each-run-alone",
        "ledger",
        "pipeline/privacy/ledger.py",
        "wanted = _composed([*earlier, request.event], budget.delta).epsilon_pld",
        "wanted = _composed([request.event], budget.delta).epsilon_pld",
        "the budget is compared with the run's own ε",
        (_LEDGER, _STAGE),
    ),
    Bug(
        "ledger-aborted-is-free",
        "ledger",
        "pipeline/privacy/ledger.py",
        "if history.version_of[charge.id] in versions]",
        'if history.version_of[charge.id] in versions and charge.state != "aborted"]',
        "what was aborted is not counted",
        (_LEDGER, _STAGE),
    ),
    Bug(
        "ledger-open-is-free",
        "ledger",
        "pipeline/privacy/ledger.py",
        "if history.version_of[charge.id] in versions]",
        'if history.version_of[charge.id] in versions and charge.state != "reserved"]',
        "what died after its reservation is not counted",
        (_LEDGER, _STAGE),
    ),
    Bug(
        "ledger-equal-versions-only",
        "ledger",
        "pipeline/privacy/ledger.py",
        "if members.share(self._members_of(version))}",
        "if members is self._members_of(version)}",
        "another version of the data begins with a full budget",
        (_LEDGER,),
    ),
    Bug(
        "ledger-one-shared-unit-passes",
        "ledger",
        "pipeline/privacy/ledger_members.py",
        "agree = np.flatnonzero(inside & (other._first[np.where(inside, start, 0)] == self._first))",
        "agree = np.flatnonzero(inside & (other._first[np.where(inside, start, 0)] == self._first))[1:]",
        "versions that have one unit in common share no spending",
        (_LEDGER,),
    ),
    Bug(
        "ledger-largest-instead-of-composed",
        "ledger",
        "pipeline/privacy/accounting.py",
        "rounds[inner] = rounds.get(inner, 0) + count",
        "rounds[inner] = max(rounds.get(inner, 0), count)",
        "equal runs are counted once",
        (_ACCOUNTING, _LEDGER, _STAGE),
    ),
    Bug(
        "ledger-no-guarantee-is-free",
        "ledger",
        "pipeline/privacy/accounting.py",
        "            return Spent(math.inf, math.inf, delta)\n",
        "            continue\n",
        "a run without a guarantee costs nothing",
        (_ACCOUNTING, _LEDGER, _STAGE),
    ),
    Bug(
        "ledger-tail-cut",
        "ledger",
        "pipeline/privacy/ledger.py",
        "        if anchored is None:\n            return\n",
        "        return\n",
        "the last records may be cut off",
        (_ANCHOR, _CHAIN),
    ),
    Bug(
        "ledger-chain-without-key",
        "ledger",
        "pipeline/privacy/ledger_chain.py",
        "self._records_key = hmac.digest(secret, _RECORDS, hashlib.sha256)",
        'self._records_key = hmac.digest(b"", _RECORDS, hashlib.sha256)',
        "whoever can write the database can forge its records",
        (_CHAIN,),
    ),
    Bug(
        "ledger-order-unchecked",
        "ledger",
        "pipeline/privacy/ledger_chain.py",
        "if record.previous != previous:",
        "if False:",
        "an older state may be given another future",
        (_CHAIN,),
    ),
    Bug(
        "ledger-members-unchecked",
        "ledger",
        "pipeline/privacy/ledger.py",
        "if history.chain.members_digest(members) != history.versions[version].members_digest:",
        "if False:",
        "edited members let a version look like one that shares nobody",
        (_CHAIN,),
    ),
    Bug(
        "ledger-history-not-read-again",
        "ledger",
        "pipeline/privacy/ledger.py",
        "            self._refresh()\n            self._refuse_published(request)\n",
        "            if attempt == 0:\n                self._refresh()\n            self._refuse_published(request)\n",
        "whoever loses a race decides on the old history",
        (_LEDGER, _RACES),
    ),
    Bug(
        "ledger-publishes-the-private",
        "ledger",
        "pipeline/privacy/ledger.py",
        "if any(public.share(self._members_of(sequence)) for sequence in self._history.versions):",
        "if False:",
        "units that were charged for as private may become public",
        (_LEDGER, _STAGE),
    ),
    Bug(
        "ledger-copies-of-a-checkpoint",
        "ledger",
        "pipeline/privacy/ledger.py",
        'if self._charge(charge_id).state != "reserved" or self._history.taken[charge_id] != known:',
        'if self._charge(charge_id).state != "reserved":',
        "every copy of a checkpoint is gone on with, on one charge",
        (_LEDGER, _STAGE),
    ),
    Bug(
        "charge-for-other-units",
        "ledger",
        "pipeline/stages/charges.py",
        "if store.info != manifest.info or found.to_bytes() != version.members:",
        "if store.info != manifest.info:",
        "the rows that are read are not those of the units that were charged",
        (_STAGE,),
    ),
    Bug(
        "charge-after-reading",
        "ledger",
        "pipeline/stages/train_model.py",
        "    wanted = charges.request(\n",
        '    UnitStore.open(PARTITIONS / "private")\n    wanted = charges.request(\n',
        "the private partition is opened before the ledger is asked",
        (_STAGE,),
    ),
    Bug(
        "charge-of-nothing",
        "ledger",
        "pipeline/stages/train_model.py",
        "event=plan.event if plan else dp_event.NonPrivateDpEvent(),",
        "event=plan.event if plan else dp_event.NoOpDpEvent(),",
        "variant mopo is charged as nothing",
        (_STAGE,),
    ),
    Bug(
        "charge-identity-without-code",
        "ledger",
        "pipeline/stages/charges.py",
        '"code": {name: hashlib.sha256((_CODE / name).read_bytes()).hexdigest() for name in code},',
        '"code": {},',
        "another mechanism is restored for what this one would be",
        (_STAGE,),
    ),
    Bug(
        "charge-identity-without-data",
        "ledger",
        "pipeline/stages/charges.py",
        '"members": hashlib.sha256(version.members).hexdigest(),',
        '"members": "",',
        "other data's model is restored",
        (_STAGE,),
    ),
]

_CRASHES = [
    Bug(
        "resume-round-numbers-reused",
        "crash safety",
        "pipeline/dynamics/training.py",
        "now = replace(now, started=now.started + 1)",
        "now = replace(now, started=now.done + 1)",
        "rounds that died are made up for: more run than were paid",
        (_TRAINING, _STAGE),
    ),
    Bug(
        "resume-announced-too-late",
        "crash safety",
        "pipeline/dynamics/training.py",
        "            keep(now)\n            total = _round_sum(plan, shape, source, now.weights, normaliser, local, "
        "max_transitions, execution)\n",
        "            total = _round_sum(plan, shape, source, now.weights, normaliser, local, "
        "max_transitions, execution)\n            keep(now)\n",
        "a round touches data before it is written down",
        (_TRAINING,),
    ),
    Bug(
        "checkpoint-holds-generator-state",
        "crash safety",
        "pipeline/dynamics/checkpoint.py",
        "    content = save(tensors, {",
        '    tensors["generator"] = __import__("torch").get_rng_state()\n    content = save(tensors, {',
        "a generator's state is on the disk",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-damage-unseen",
        "crash safety",
        "pipeline/dynamics/checkpoint.py",
        "if hashlib.sha256(content).digest() != digest:",
        "if False:",
        "a damaged checkpoint is taken up",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-of-another-charge",
        "crash safety",
        "pipeline/dynamics/checkpoint.py",
        'if counts.pop("charge") != charge:',
        'if not counts.pop("charge"):',
        "another charge's progress is taken up",
        (_CHECKPOINT,),
    ),
    Bug(
        "checkpoint-of-an-unprotected-run",
        "crash safety",
        "pipeline/stages/train_model.py",
        "if plan is not None and plan.is_private else None",
        "if plan is not None else None",
        "weights without a guarantee are kept and restored",
        (_STAGE,),
    ),
    Bug(
        "crash-lock-ignored",
        "crash safety",
        "pipeline/stages/charges.py",
        '                if not held.enter_context(locked(file.with_suffix(".lock"))):\n                    continue\n',
        '                held.enter_context(locked(file.with_suffix(".lock")))\n',
        "two processes work on one charge, each all of its rounds",
        (_STAGE,),
    ),
]

_LEAVING = [
    Bug(
        "statement-of-realised-rounds",
        "statement",
        "pipeline/stages/train_model.py",
        "        statement |= charges.account(params, ledger, paid.charge, version)\n",
        "        from dataclasses import replace as other\n\n"
        "        ran = other(plan, rounds=max(1, trained.rounds)) if plan else None\n"
        "        statement = _statement(ran, manifest) | charges.account(params, ledger, paid.charge, version)\n",
        "ε of the rounds that ran, not of those that were reserved",
        (_STAGE,),
    ),
    Bug(
        "statement-without-the-ledger",
        "statement",
        "pipeline/stages/charges.py",
        "spent = ledger.spent_on(version, delta)",
        "spent = accounting.compose([accounting.event_from_json(charge.event)], delta)",
        "what was spent on the dataset is this run's alone",
        (_STAGE,),
    ),
    Bug(
        "statement-private-numbers-logged",
        "statement",
        "pipeline/stages/train_model.py",
        '        run.tag("charge", paid.charge.id)\n',
        '        run.tag("charge", paid.charge.id)\n'
        '        rows = UnitStore.open(PARTITIONS / "private").flat()[0]\n'
        '        run.metric("first", float(rows[0, 0]))\n',
        "a private number is logged",
        (_STAGE,),
    ),
    Bug(
        "release-void-leaves",
        "release",
        "pipeline/bundle.py",
        "if (not statement.private or statement.void) and not void_ok:",
        "if False:",
        "what must not be relied on leaves unasked",
        (_RELEASE,),
    ),
    Bug(
        "release-hashes-unsearched",
        "release",
        "pipeline/release.py",
        "if any(known in run or known.startswith(run) for known in hashes):",
        "if False:",
        "unkeyed hashes of private data may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-counts-unsearched",
        "release",
        "pipeline/release.py",
        "        if found & counts:\n",
        "        if False:\n",
        "row counts of private data may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-paths-unsearched",
        "release",
        "pipeline/bundle.py",
        "if _PATH.search(_text(folder / name)):",
        "if False:",
        "paths of the machine may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-undeclared-keys",
        "release",
        "pipeline/bundle.py",
        'model_config = ConfigDict(extra="forbid",',
        'model_config = ConfigDict(extra="ignore",',
        "JSON keys that nobody declared may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-tensors-unchecked",
        "release",
        "pipeline/bundle.py",
        "if (again / Path(file).name).read_bytes() != (folder / file).read_bytes():",
        "if False:",
        "tensors and metadata that no loader reads may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-more-files",
        "release",
        "pipeline/bundle.py",
        '(found - allowed, "does not belong in a bundle"), ',
        "",
        "any file beside the declared ones may leave",
        (_RELEASE,),
    ),
    Bug(
        "release-archives-pass",
        "release",
        "pipeline/bundle.py",
        "if zipfile.is_zipfile(folder / name):",
        "if False:",
        "an archive with a pickle passes as a declared file",
        (_RELEASE,),
    ),
    Bug(
        "release-epsilon-unchecked",
        "release",
        "pipeline/bundle.py",
        "    return accounted is not None and accounted <= stated * (1 + _TOLERANCE)\n",
        "    return True\n",
        "a stranger's ε is believed",
        (_RELEASE,),
    ),
    Bug(
        "loading-a-pickle",
        "release",
        "pipeline/policy/exported.py",
        "import torch\n",
        "import pickle  # noqa: F401\n\nimport torch\n",
        "an artefact's loader can run what is in it",
        (_SECURITY,),
    ),
]

BUGS: tuple[Bug, ...] = (
    *_NOISE,
    *_CLIP,
    *_SAMPLER,
    *_DENOMINATOR,
    *_ACCOUNTS,
    *_DATA_FLOW,
    *_STATEMENTS,
    *_PAYING,
    *_CRASHES,
    *_LEAVING,
)
