"""The faults, each with the test that must notice it."""

from typing import NamedTuple

from tests.faults.edits import (
    Edit,
    call,
    condition,
    dropped,
    expression,
    handler,
    returned,
    value_of,
)


class Fault(NamedTuple):
    """One way to break the guarantee.

    Attributes:
        name: to ask for it by.
        module: dotted name.
        function: qualified name; empty: the module's own statements.
        edit: of its syntax tree.
        test: pytest's node id of the test that must fail.
    """

    name: str
    module: str
    function: str
    edit: Edit
    test: str = ""


MECHANISM, TESTS = "primorl.privacy.mechanism", "tests/privacy/mechanism"
PLAN, CLIPPING, SAMPLING = f"{MECHANISM}.plan", f"{MECHANISM}.clipping", f"{MECHANISM}.sampling"
ON_PLAN, ON_CLIP = f"{TESTS}/test_plan.py", f"{TESTS}/test_clipping.py"
ON_ROUND = "tests/hostile/test_round.py"
QUERIES = f"{MECHANISM}.queries"
DRAW = "draw.view_as(part)"
ACCOUNTING, TEST_ACCOUNTING = "primorl.privacy.accounting", "tests/privacy/accounting"
EPSILON, FILTER = (f"{ACCOUNTING}.{name}" for name in ("epsilon", "privacy_filter"))
LEDGER, ON_LEDGER = "primorl.privacy.ledger", "tests/privacy/ledger"
ACCOUNT, BOOK, CHAIN = (f"{LEDGER}.{name}" for name in ("account", "ledger", "chain"))
CHARGES, PROGRESS = f"{LEDGER}.charges", f"{LEDGER}.progress"
PAYING, INTERRUPTED = f"{ON_LEDGER}/test_paying.py", f"{ON_LEDGER}/test_interruptions.py"
INDEPENDENCE = "tests/engine/test_independence.py"
LOCAL_UPDATE = "primorl.engine.local_update"
ONLINE = "primorl.online.learning"
HEAD_QUERIES, ON_LINEAR = "primorl.engine.queries", "tests/engine/test_linear.py"
TRAINING, FEATURES = "primorl.engine.training", "primorl.model.features"
CLIPPED = "self.contribution.total(torch.stack(means))"
SCALES = "contribution.total(_means(torch.cat((z, z * z, _powers(share), *categories), -1), own))"
UNCLIPPED_SCALES = SCALES.replace("contribution.total(", "(2.0**20 * ").replace(
    ", own))", ", own).nan_to_num()).long().sum(0)"
)
UNCLIPPED = "(torch.stack(means).nan_to_num(nan=0.0) * 2.0**20).long().sum(0)"

CATCHERS = {
    # linear heads
    f"{ON_LINEAR}::test_lost_late_answers_are_not_asked_again": [
        Fault(
            "late-queries-asked-twice",
            TRAINING,
            "_run_rounds",
            expression("not now.asked_late", "True"),
        )
    ],
    f"{ON_LINEAR}::test_a_unit_more_moves_every_sum_by_at_most_the_sensitivity": [
        Fault(
            "scales-not-clipped",
            HEAD_QUERIES,
            "ScalesQuery.total",
            expression(SCALES, UNCLIPPED_SCALES),
        ),
        Fault(
            "residuals-not-clipped",
            HEAD_QUERIES,
            "ResidualQuery.total",
            expression(CLIPPED, UNCLIPPED),
        ),
    ],
    f"{ON_LINEAR}::test_features_are_orthonormal_and_the_same_in_any_company": [
        Fault(
            "features-not-held", FEATURES, "Polynomials.__call__", call("columns.clamp", "columns")
        )
    ],
    # noise
    f"{ON_ROUND}::test_the_noise_has_the_stated_deviation": [
        Fault("noise-half", PLAN, "Plan.release", value_of("scale", "0.5 * _")),
        Fault("noise-not-added", PLAN, "Plan.release", expression(DRAW, "0 * _")),
        Fault(
            "noise-for-one-member",
            PLAN,
            "Plan.release",
            expression("self.clip.sensitivity", "self.clip.bound"),
        ),
    ],
    f"{ON_PLAN}::test_noise_is_independent_over_coordinates_members_and_rounds": [
        Fault("noise-shared-by-members", PLAN, "Plan.release", expression(DRAW, "_[:1]"))
    ],
    f"{ON_PLAN}::test_noise_and_sum_are_whole_multiples_of_the_grid_and_added_exactly": [
        Fault(
            "noise-in-float32",
            PLAN,
            "Plan.release",
            expression(f"part + {DRAW}", f"part.float() + {DRAW}.float()"),
        )
    ],
    f"{ON_PLAN}::test_the_usual_seeds_reach_neither_cohorts_nor_noise": [
        Fault(
            "noise-from-torch",
            PLAN,
            "Plan.release",
            call("discrete_gaussian", "scale * torch.randn(sum(sizes), dtype=torch.float64)"),
        )
    ],
    f"{ON_PLAN}::test_an_empty_cohort_releases_noise": [
        Fault(
            "noise-missing-in-empty-rounds",
            PLAN,
            "Plan.release",
            condition("is_private", "_ and any(bool(part.any()) for part in total)"),
        )
    ],
    f"{TESTS}/test_entropy.py::test_noise_is_independent_and_normal": [
        Fault(
            "noise-replayed",
            SAMPLING,
            "SystemEntropy.fill",
            call("os.urandom", "self.__dict__.setdefault('key', _)"),
        )
    ],
    f"{TESTS}/test_entropy.py::test_the_law_of_whole_numbers_is_exact": [
        Fault(
            "noise-accepts-all", f"{MECHANISM}.noise", "_accepted", value_of("accepted", "_ | True")
        )
    ],
    f"{ON_PLAN}::test_an_answer_is_a_noisy_mean_over_the_declared_units": [
        Fault("noise-of-a-query", QUERIES, "GaussianQuery.standard_deviation", returned("0.5 * _"))
    ],
    # clip
    f"{ON_CLIP}::test_neighbours_differ_by_at_most_the_sensitivity": [
        Fault(
            "clip-none",
            CLIPPING,
            "EnsembleClip.factors",
            returned("squares.new_ones(squares.shape)"),
        ),
        Fault(
            "clip-members-to-the-whole",
            CLIPPING,
            "EnsembleClip.bound",
            returned("self.clipping_norm"),
        ),
        Fault(
            "clip-layers-to-a-member",
            CLIPPING,
            "EnsembleClip.bound",
            value_of("parts", "self.members"),
        ),
    ],
    f"{ON_CLIP}::test_rounding_carries_no_vector_above_the_bound": [
        Fault("clip-without-margin", CLIPPING, "", value_of("_MARGIN", "1.0"))
    ],
    f"{ON_CLIP}::test_the_sensitivity_is_reached": [
        Fault(
            "clip-replaced-as-zeroed",
            CLIPPING,
            "_NormClip.sensitivity_under",
            returned("self.clipping_norm"),
        )
    ],
    f"{ON_CLIP}::test_the_edge_cases_are_those_of_the_table": [
        Fault(
            "clip-passes-nan", CLIPPING, "EnsembleClip.finish", call("update.nan_to_num_", "update")
        )
    ],
    f"{ON_CLIP}::test_wide_layers_keep_the_bound": [
        Fault("clip-norm-in-float32", CLIPPING, "", value_of("_LONGEST_ROW", "1 << 30"))
    ],
    f"{ON_CLIP}::test_one_vector_moves_the_sum_by_no_more_than_an_l2_clip_states": [
        Fault(
            "clip-of-one-vector",
            CLIPPING,
            "L2Clip.finish",
            expression("self.clipping_norm * _MARGIN / norms", "2 * _"),
        )
    ],
    "tests/engine/test_local_update.py::test_a_step_without_rows_clips_nothing": [
        Fault(
            "clip-again-on-padding",
            LOCAL_UPDATE,
            "_clip",
            expression("idle.unsqueeze(-1)", "_ & False"),
        )
    ],
    # sampling
    f"{ON_ROUND}::test_the_engine_does_what_the_algorithm_says": [
        Fault(
            "sampling-everyone",
            SAMPLING,
            "PoissonSampler.sample",
            condition("sampling_probability", "True"),
        ),
        Fault(
            "sampling-shared-coins",
            SAMPLING,
            "PoissonSampler.sample",
            call("integers", "np.repeat(_, 2)[:units]"),
        ),
        Fault(
            "sampling-fixed-size",
            SAMPLING,
            "PoissonSampler.sample",
            call(
                "np.flatnonzero",
                "np.sort(integers(entropy, units).argsort()[: round(self.sampling_probability * "
                "units)])",
            ),
        ),
        Fault(
            "sampling-one-cohort",
            PLAN,
            "Plan.cohort",
            returned("self.__dict__.setdefault('kept', _)"),
        ),
    ],
    "tests/engine/test_cohort.py::test_no_two_rounds_share_their_orders": [
        Fault(
            "sampling-seeded-orders",
            LOCAL_UPDATE,
            "_shuffled",
            call(
                "uniforms",
                "torch.rand(len(lengths), most, generator=torch.Generator().manual_seed(0))",
            ),
        )
    ],
    # accounting
    f"{TEST_ACCOUNTING}/test_epsilon.py::test_golden_values": [
        Fault(
            "accounting-half-q",
            EPSILON,
            "Training.event",
            expression("self.sampling_probability", "_ / 2"),
        ),
        Fault(
            "accounting-one-round-less",
            EPSILON,
            "Training.event",
            expression("self.rounds", "max(1, _ - 1)"),
        ),
        Fault("accounting-larger-delta", EPSILON, "spent.tight", expression("delta", "10 * _")),
        Fault("accounting-other-relation", EPSILON, "", value_of("RELATION", "_.REPLACE_ONE")),
    ],
    f"{ON_PLAN}::test_queries_are_part_of_what_is_stated": [
        Fault(
            "accounting-more-noise-than-added",
            PLAN,
            "Plan._accounted",
            expression("self.noise_multiplier", "2 * _"),
        ),
        Fault("accounting-free-query", PLAN, "Plan._accounted", value_of("queries", "_[1:]")),
    ],
    f"{TEST_ACCOUNTING}/test_epsilon.py::test_runs_compose_as_one_longer_run": [
        Fault(
            "accounting-equal-runs-once",
            EPSILON,
            "compose",
            expression("rounds.get(inner, 0) + count", "max(rounds.get(inner, 0), count)"),
        )
    ],
    f"{TEST_ACCOUNTING}/test_epsilon.py::test_a_group_is_what_an_independent_accountant_says": [
        Fault(
            "accounting-group-of-samples",
            EPSILON,
            "_sampled",
            call("stats.binom.pmf", "stats.binom.pmf(counts, 1, sampling_probability)"),
        )
    ],
    f"{TEST_ACCOUNTING}/test_privacy_filter.py"
    "::test_the_gaussian_covers_the_event_and_a_smaller_one_does_not": [
        Fault("filter-one-order", FILTER, "gaussian_cost", value_of("profiles", "_[1:]"))
    ],
    f"{TEST_ACCOUNTING}/test_privacy_filter.py::test_what_escapes_has_a_share_of_delta_too": [
        Fault(
            "filter-escaped-mass",
            FILTER,
            "Cost._gaussian_epsilon",
            condition("escaped", "self.squared_mean > _LARGEST_MEAN**2"),
        )
    ],
    # ledger and payment
    f"{ON_LEDGER}/test_ledger.py::test_a_sweep_of_ten_under_a_budget_for_seven": [
        Fault(
            "ledger-each-run-alone",
            ACCOUNT,
            "Account.with_events",
            expression("self.cost", "Cost()"),
        ),
        Fault(
            "ledger-aborted-is-free",
            ACCOUNT,
            "account_of",
            condition("sharing", "_ and each.state != 'aborted'"),
        ),
    ],
    f"{ON_LEDGER}/test_ledger.py::test_the_refusal_says_what_is_left": [
        Fault(
            "ledger-filter-by-pld",
            ACCOUNT,
            "Account.with_events",
            returned("fixed_epsilon([*self.events, *events], delta)"),
        )
    ],
    f"{ON_LEDGER}/test_ledger.py::test_a_version_shares_spending_exactly_if_it_shares_a_unit": [
        Fault(
            "ledger-one-shared-unit-passes",
            ACCOUNT,
            "Roster.shares",
            expression(
                "(mine[segment] & bits).any()", "np.unpackbits(mine[segment] & bits).sum() > 1"
            ),
        )
    ],
    f"{ON_LEDGER}/test_account.py"
    "::test_charges_on_a_finer_unit_count_once_for_every_unit_that_a_person_has": [
        Fault("ledger-groups-at-face-value", ACCOUNT, "Entry.event", expression("self.units", "1"))
    ],
    f"{ON_LEDGER}/test_account.py::test_units_that_were_private_never_become_public": [
        Fault("ledger-published-charged", BOOK, "Ledger._refuse", dropped("refuse_published"))
    ],
    f"{ON_LEDGER}/test_chain.py::test_a_cheat_is_found_and_the_first_broken_record_named": [
        Fault(
            "ledger-tail-cut",
            BOOK,
            "Ledger._check_head",
            expression("anchored is None or anchored == BEGUN", "True"),
        ),
        Fault(
            "ledger-without-key",
            CHAIN,
            "Chain.__init__",
            value_of("self._records_key", "hmac.digest(b'', _RECORDS, hashlib.sha256)"),
        ),
    ],
    f"{ON_LEDGER}/test_chain.py::test_a_record_of_another_future_of_the_same_secret_is_found": [
        Fault("ledger-order-unchecked", CHAIN, "Chain._checked", condition("previous", "False"))
    ],
    f"{ON_LEDGER}/test_chain.py::test_edited_members_are_found_before_they_let_anyone_through": [
        Fault(
            "ledger-members-unchecked", ACCOUNT, "Directory._check", condition("content", "False")
        )
    ],
    f"{ON_LEDGER}/test_paying.py::test_one_of_many_gets_the_last_of_a_budget": [
        Fault("ledger-decides-on-the-past", BOOK, "Ledger._write", dropped("self._refresh"))
    ],
    f"{ON_LEDGER}/test_ledger.py::test_a_charge_is_resumed_under_its_last_token_alone": [
        Fault(
            "payment-copies-resumed",
            BOOK,
            "Ledger.take.decide",
            condition("last_take", "self._charge(charge_id).state != 'reserved'"),
        )
    ],
    f"{PAYING}::test_an_old_copy_runs_nothing_and_the_newest_one_still_does": [
        Fault("payment-progress-not-counted", CHARGES, "_writer.save", dropped("progress.advance"))
    ],
    f"{PAYING}::test_a_copy_that_resumes_stops_the_living_original": [
        Fault(
            "payment-original-goes-on",
            PROGRESS,
            "Progress.advance",
            condition("replace_progress", "False"),
        )
    ],
    f"{INTERRUPTED}::test_an_interruption_at_any_write_loses_nothing": [
        Fault("payment-checkpoint-deleted", CHARGES, "_reserved", handler("BaseException"))
    ],
    f"{INTERRUPTED}::test_no_schedule_of_crashes_breaks_a_promise": [
        Fault("payment-resumption-forgets", CHARGES, "_taken", value_of("tokens", "(token,)"))
    ],
    "tests/engine/test_training.py"
    "::test_however_often_a_run_dies_no_more_rounds_run_than_were_reserved": [
        Fault(
            "payment-rounds-made-up-for",
            TRAINING,
            "_run_rounds",
            expression("now.started + 1", "now.done + 1"),
        )
    ],
    # sensitivity
    f"{INDEPENDENCE}::test_neighbours_and_places_do_not_matter": [
        Fault(
            "sensitivity-shared-lanes",
            "primorl.model.workspace",
            "Workspace.apart",
            value_of("stride", "size"),
        )
    ],
    f"{INDEPENDENCE}::test_a_unit_moves_the_sum_by_its_own_update_exactly": [
        Fault(
            "sensitivity-rounded-sum",
            LOCAL_UPDATE,
            "Kernel.sum",
            call(".trunc_", "update.mul_(1 / grid)"),
        ),
        Fault(
            "sensitivity-order-of-others",
            LOCAL_UPDATE,
            "_first_order",
            expression("lengths.unsqueeze(1) <= bound", "_ & False"),
        ),
    ],
    "tests/engine/test_cohort.py::test_every_epoch_takes_each_transition_once": [
        Fault(
            "sensitivity-weights-of-others",
            LOCAL_UPDATE,
            "raw_batches",
            call("own.sum", "_.float().mean()"),
        )
    ],
    f"{TESTS}/test_queries.py::test_histograms_of_neighbours": [
        Fault("sensitivity-of-histograms", QUERIES, "Fractions.total", value_of("rows", "1"))
    ],
    "tests/online/test_sensitivity.py"
    "::test_a_user_moves_the_sum_by_at_most_its_bound_and_nobody_else": [
        Fault(
            "sensitivity-of-users",
            ONLINE,
            "Cohort.noisy_mean",
            call("clip.finish", "(rows.detach().to(torch.float64) / clipping_norm).nan_to_num()"),
        )
    ],
    "tests/online/test_cohort.py::test_all_that_a_user_is_in_is_accounted": [
        Fault(
            "sensitivity-releases-not-paid",
            ONLINE,
            "online_plan",
            expression("releases * appearances", "appearances"),
        )
    ],
}
FAULTS = [fault._replace(test=test) for test, faults in CATCHERS.items() for fault in faults]
