"""The bundle of a policy that learned from users: policy, statement, what was measured, and cards.

It is checked as the other bundles are: no file, key or tensor beyond what is declared, every ε accounted again, and the
cards made again from the other files.
"""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from primorl.config.params import Params, Reading
from primorl.evaluation.summary import OnlineSummary
from primorl.policy.config import PolicyConfig
from primorl.privacy.statement import OnlineProtocol, Statement
from primorl.privacy.together import mechanism
from primorl.project import paths
from primorl.project.errors import PipelineError
from primorl.project.files import file_sha256, replaced_directory
from primorl.project.records import write_record
from primorl.release.build import check_outputs, finish, forget_times
from primorl.release.bundle import check_cards, checked_policy, read_private_key, refuse_void, verify
from primorl.release.bundle import sign as sign_bundle
from primorl.release.card import both_forms, online_card, user_epsilon
from primorl.release.contents import CARDS, MADE_ONLINE, ONLINE, POLICY, check_names_and_hashes, read
from primorl.release.recheck import check_statement, given
from primorl.setup.accounts import begun_ledger
from primorl.setup.online import RELEASES

FILES = frozenset((*POLICY, ONLINE, *CARDS))
"""What the bundle holds beside its manifest and the signature of that, if it is signed."""
_WHAT = "models/online"


def is_online(folder: Path) -> bool:
    """Whether a folder holds such a bundle, sound or not."""
    return (folder / ONLINE).is_file()


def release_online(target: Path, params: Params | Reading, *, void_ok: bool, sign: Path | None = None) -> Statement:
    """Make the bundle of ``models/online`` in ``target``; arguments and result are those of `build.release`.

    Raises:
        PipelineError: nobody was met, a file is missing or contradicts another, or the statement is void.
    """
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or is_online(target))):
        raise PipelineError(f"{target}: in the way; allowed is an empty folder or an earlier bundle of this kind")
    signer = None if sign is None else read_private_key(sign)
    summary = OnlineSummary.read(paths.ONLINE_METRICS)
    if not summary.met:
        raise PipelineError(f"{paths.ONLINE_METRICS}: nobody was met; set online.users in params.yaml, run `dvc repro`")
    check_outputs((paths.ONLINE, paths.ONLINE_METRICS))
    _check_made(params, Statement.read(paths.ONLINE))
    with replaced_directory(target) as fresh:
        (fresh / "policy").mkdir()
        for name in POLICY:
            shutil.copyfile(paths.ONLINE / Path(name).name, fresh / name)
        write_record(fresh / ONLINE, replace(summary, seconds=None))
        finish(fresh, both_forms(online_card(read(fresh, POLICY[2], Statement), summary)))
        checked = check_online(fresh, void_ok=void_ok)
        if signer is not None:
            sign_bundle(fresh, signer)
        forget_times(fresh)
    return checked


def check_online(folder: Path, *, void_ok: bool, key: Path | None = None) -> Statement:
    """Check such a bundle, one's own or a stranger's; see `primorl.release.bundle.check`."""
    check_names_and_hashes(folder, FILES)
    if key is not None:
        verify(folder, key)
    config, statement = read(folder, POLICY[1], PolicyConfig), read(folder, POLICY[2], Statement)
    summary, path = read(folder, ONLINE, OnlineSummary), folder / POLICY[2]
    _check_policy(folder, config)
    if not void_ok:
        refuse_void(path, statement)
    given(path, "charge", statement.charge)
    protocol = given(path, "online", statement.online)
    _check_protocol(path, statement, protocol)
    check_statement(path, statement)
    _check_summary(folder, config, statement, protocol, summary)
    check_cards(folder, both_forms(online_card(statement, summary)))
    return statement


def _check_made(params: Params | Reading, statement: Statement) -> None:
    """The ledger must know the charge, and that it made these very files."""
    ledger = begun_ledger(params)
    charges = []
    if ledger is not None:
        with closing(ledger):
            charges = ledger.charges()
    made = next((charge.made for charge in charges if charge.id == statement.charge), ())
    found = {name: file_sha256(paths.ONLINE / name) for name in MADE_ONLINE}
    if found not in [dict(each) for each in made]:
        raise PipelineError(
            f"{paths.ONLINE}: not what charge {statement.charge} made, as the ledger has it; `dvc repro online`"
        )


def _check_policy(folder: Path, config: PolicyConfig) -> None:
    policy = checked_policy(folder, config)
    if not all(bool(layer.isfinite().all()) for layer in policy.layers):
        raise PipelineError(f"{folder / POLICY[0]}: found NaN or infinity, allowed are finite numbers")
    if config.policy != "models/online":
        raise PipelineError(f"{folder / POLICY[1]}: policy: found {config.policy!r}, allowed is 'models/online'")


def _check_protocol(path: Path, statement: Statement, protocol: OnlineProtocol) -> None:
    """The mechanism of the users must be what `online_plan` makes of the protocol."""
    own = statement.mechanisms[-1] if statement.mechanisms else mechanism(_WHAT, statement)
    met = protocol.cohorts * protocol.cohort
    contradictions = {
        "mechanisms: the last one is not that of models/online": own.what != _WHAT,
        "sampling_probability: not 1, and cohorts are not sampled": own.sampling_probability != 1,
        "queries: users are asked none": bool(own.queries),
        "online: rounds are not releases times appearances": own.rounds != protocol.releases * protocol.appearances,
        "online: users are not the units": statement.units != protocol.users,
        "online: cohort: larger than the number of users": protocol.cohort > protocol.users,
        "online: cohorts: users are in more of them than appearances": met > protocol.users * protocol.appearances,
        "online: releases: not those of the algorithm": protocol.releases != RELEASES.get(protocol.algorithm),
    }
    for what, found in contradictions.items():
        if found:
            raise PipelineError(f"{path}: {what}")


def _check_summary(
    folder: Path, config: PolicyConfig, statement: Statement, protocol: OnlineProtocol, summary: OnlineSummary
) -> None:
    """What the cards quote must be what the statement says, of this very policy."""
    expected = {
        "met": True,
        "env_id": config.environment,
        "algorithm": protocol.algorithm,
        "users": protocol.users,
        "cohort": protocol.cohort,
        "cohorts": protocol.cohorts,
        "private": statement.sound,
        "epsilon": user_epsilon(statement),
        "epsilon_in_all": statement.epsilon if statement.sound else None,
        "delta": statement.delta,
        "unit": statement.unit,
        "void": statement.void,
        "start": "policy" if statement.mechanisms else "scratch",
        "policy_sha256": file_sha256(folder / POLICY[0]),
        "seconds": None,
    }
    for key, value in expected.items():
        if getattr(summary, key) != value:
            raise PipelineError(f"{folder / ONLINE}: {key}: contradicts {POLICY[1]} or {POLICY[2]}")
