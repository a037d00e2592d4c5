"""The faults, each with the test that must notice it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.faults import edits
from tests.faults.edits import Edit


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


CHARGES = "primorl.privacy.ledger.charges"
ROOT = Path(__file__).resolve().parents[2]
# Below each file its tests, below each test its faults: name, place, and edit as old => new.
TABLE = """
engine/test_linear.py
    test_lost_late_answers_are_not_asked_again
        late-queries-asked-twice: engine.training train: expression not state.finished => True
    test_a_unit_more_moves_every_sum_by_at_most_the_sensitivity
        scales-not-clipped: engine.queries ScalesQuery.total: expression
            contribution.total(_mean_of_own_rows(values, own)) =>
            (2.0**20 * _mean_of_own_rows(values, own).nan_to_num()).long().sum(0)
        residuals-not-clipped: engine.queries _sum_predictions: expression
            contribution.total(torch.stack(found)) => (torch.stack(found).nan_to_num(nan=0.0) *
            2.0**20).long().sum(0) if isinstance(query, ResidualQuery)
            else contribution.total(torch.stack(found))
        explained-not-clipped: engine.queries _sum_predictions: expression
            contribution.total(torch.stack(found)) => (torch.stack(found).nan_to_num(nan=0.0) *
            2.0**20).long().sum(0) if isinstance(query, ExplainedQuery)
            else contribution.total(torch.stack(found))
    test_features_are_orthonormal_and_the_same_in_any_company
        features-not-held: features Polynomials.__call__: call columns.clamp => columns
hostile/test_round.py
    test_the_noise_has_the_stated_deviation
        noise-half: mechanism Mechanism.release: value_of scale => 0.5 * _
        noise-not-added: mechanism Mechanism.release: expression draw.view_as(part) => 0 * _
        noise-for-one-member: mechanism Mechanism.release: expression self.clip.sensitivity =>
            self.clip.bound
privacy/mechanism/test_mechanism.py
    test_noise_is_independent_over_coordinates_members_and_rounds
        noise-shared-by-members: mechanism Mechanism.release: expression draw.view_as(part) =>
            _[:1]
    test_noise_and_sum_are_whole_multiples_of_the_grid_and_added_exactly
        noise-in-float32: mechanism Mechanism.release: expression part + draw.view_as(part) =>
            part.float() + draw.view_as(part).float()
    test_the_usual_seeds_reach_neither_cohorts_nor_noise
        noise-from-torch: mechanism Mechanism.release: call discrete_gaussian => scale *
            torch.randn(sum(sizes), dtype=torch.float64)
    test_an_empty_cohort_releases_noise
        noise-missing-in-empty-rounds: mechanism Mechanism.release: condition is_private => _
            and any(bool(part.any()) for part in total)
privacy/mechanism/test_entropy.py
    test_noise_is_independent_and_normal
        noise-replayed: sampling SystemEntropy.fill: call os.urandom =>
            self.__dict__.setdefault('key', _)
    test_the_law_of_whole_numbers_is_exact
        noise-accepts-all: sampling _propose: value_of accepted => _ | True
privacy/mechanism/test_mechanism.py
    test_an_answer_is_a_noisy_mean_over_the_declared_units
        noise-of-a-query: mechanism.mechanism GaussianQuery.standard_deviation: returned 0.5 * _
privacy/mechanism/test_clipping.py
    test_neighbours_differ_by_at_most_the_sensitivity
        clip-none: clipping EnsembleClip.factors: returned squares.new_ones(squares.shape)
        clip-members-to-the-whole: clipping EnsembleClip.bound: returned self.clipping_norm
        clip-layers-to-a-member: clipping EnsembleClip.bound: value_of parts => self.members
    test_rounding_carries_no_vector_above_the_bound
        clip-without-margin: clipping: value_of _MARGIN => 1.0
    test_the_edge_cases_are_those_of_the_table
        clip-passes-nan: clipping EnsembleClip.finish: call update.nan_to_num_ => update
    test_wide_layers_keep_the_bound
        clip-norm-in-float32: clipping: value_of _LONGEST_ROW => 1 << 30
    test_one_vector_moves_the_sum_by_no_more_than_an_l2_clip_states
        clip-of-one-vector: clipping L2Clip.finish: expression self.clipping_norm * _MARGIN /
            norms => 2 * _
engine/test_local_update.py
    test_a_step_without_rows_clips_nothing
        clip-again-on-padding: local_update _clip: expression idle.unsqueeze(-1) => _ & False
    test_a_unit_counts_in_full_from_so_many_rows_on
        clip-exceeded-by-counts: local_update read_batches: expression (lengths /
            local.full_rows).clamp(LEAST_COUNT, 1.0).to(device) => lengths / local.full_rows
hostile/test_round.py
    test_the_engine_does_what_the_algorithm_says
        sampling-everyone: sampling PoissonSampler.sample: condition sampling_probability =>
            True
        sampling-shared-coins: sampling PoissonSampler.sample: call integers => np.repeat(_,
            2)[:units]
        sampling-fixed-size: sampling PoissonSampler.sample: call np.flatnonzero =>
            np.sort(integers(entropy, units).argsort()[: round(self.sampling_probability * units)])
        sampling-one-cohort: mechanism Mechanism.cohort: returned
            self.__dict__.setdefault('kept', _)
engine/test_cohort.py
    test_no_two_rounds_share_their_orders
        sampling-seeded-orders: local_update _shuffle: call uniforms =>
            torch.rand(len(lengths), most, generator=torch.Generator().manual_seed(0))
privacy/accounting/test_epsilon.py
    test_golden_values
        accounting-half-q: epsilon Training.event: expression self.sampling_probability => _ / 2
        accounting-one-round-less: epsilon Training.event: expression self.rounds => max(1, _ -
            1)
        accounting-larger-delta: epsilon spent.tight: expression delta => 10 * _
        accounting-other-relation: epsilon: value_of RELATION => _.REPLACE_ONE
privacy/mechanism/test_mechanism.py
    test_queries_are_part_of_what_is_stated
        accounting-more-noise-than-added: mechanism Mechanism._account: expression
            self.noise_multiplier => 2 * _
        accounting-free-query: mechanism Mechanism._account: value_of queries => _[1:]
privacy/accounting/test_epsilon.py
    test_runs_compose_as_one_longer_run
        accounting-equal-runs-once: epsilon compose: expression rounds.get(inner, 0) + count =>
            max(rounds.get(inner, 0), count)
    test_a_group_is_what_an_independent_accountant_says
        accounting-group-of-samples: epsilon _sample_group: call stats.binom.pmf =>
            stats.binom.pmf(counts, 1, sampling_probability)
privacy/accounting/test_privacy_filter.py
    test_the_gaussian_covers_the_event_and_a_smaller_one_does_not
        filter-one-order: privacy_filter gaussian_cost: value_of profiles => _[1:]
    test_what_escapes_has_a_share_of_delta_too
        filter-escaped-mass: privacy_filter Cost._gaussian_epsilon: condition escaped =>
            self.squared_mean > _LARGEST_MEAN**2
privacy/ledger/test_ledger.py
    test_a_sweep_of_ten_under_a_budget_for_seven
        ledger-each-run-alone: account Account.with_events: expression self.cost => Cost()
        ledger-open-is-free: account account_of: condition sharing => _ and each.state !=
            'reserved'
    test_the_refusal_says_what_is_left
        ledger-filter-by-pld: account Account.with_events: returned fixed_epsilon([*self.events,
            *events], delta)
    test_a_version_shares_spending_exactly_if_it_shares_a_unit
        ledger-one-shared-unit-passes: account _meet: expression (many[at] == few).any() =>
            (many[at] == few).sum() > 1
privacy/ledger/test_account.py
    test_two_kinds_of_units_of_the_same_people_are_refused
        ledger-kinds-at-face-value: ledger.ledger Ledger._refuse: dropped refuse_other_unit
    test_units_that_were_private_never_become_public
        ledger-published-charged: ledger.ledger Ledger._refuse: dropped refuse_published
privacy/ledger/test_chain.py
    test_a_cheat_is_found_and_the_first_broken_record_named
        ledger-tail-cut: ledger.ledger Ledger._check_head: expression anchored is None or
            anchored.sequence < 1 => True
        ledger-without-key: history Chain.__init__: value_of self._records_key => hmac.digest(b'',
            _RECORDS, hashlib.sha256)
    test_a_record_of_another_future_of_the_same_secret_is_found
        ledger-order-unchecked: history Chain._check: condition previous => not sound
    test_edited_members_are_found_before_they_let_anyone_through
        ledger-members-unchecked: account Directory.roster: condition stored => False
privacy/ledger/test_paying.py
    test_one_of_many_gets_the_last_of_a_budget
        ledger-decides-on-the-past: ledger.ledger Ledger._write: dropped self._refresh
privacy/ledger/test_paying.py
    test_an_old_copy_runs_nothing_and_the_newest_one_still_does
        payment-progress-not-counted: charges _writer.save: dropped progress.advance
    test_a_copy_that_resumes_stops_the_living_original
        payment-original-goes-on: store Progress.advance: condition replace_progress => False
privacy/ledger/test_interruptions.py
    test_an_interruption_at_any_write_loses_nothing
        payment-checkpoint-deleted: charges _reserved: handler BaseException
engine/test_training.py
    test_however_often_a_run_dies_no_more_rounds_run_than_were_reserved
        payment-rounds-made-up-for: engine.training _run_rounds: expression now.started + 1 =>
            now.done + 1
engine/test_independence.py
    test_gaps_give_every_pair_its_own_end
        sensitivity-shared-lanes: numerics Workspace.apart: value_of stride => size
    test_a_unit_moves_the_sum_by_its_own_update_exactly
        sensitivity-rounded-sum: local_update Kernel.sum: call .trunc_ => update.mul_(1 / grid)
        sensitivity-order-of-others: local_update _first_order: expression lengths.unsqueeze(1)
            <= bound => _ & False
engine/test_cohort.py
    test_every_epoch_takes_each_transition_once
        sensitivity-weights-of-others: local_update read_batches: call own.sum =>
            _.float().mean()
privacy/mechanism/test_queries.py
    test_histograms_of_neighbours
        sensitivity-of-histograms: mechanism.mechanism Fractions.total: value_of rows => 1
online/test_sensitivity.py
    test_a_user_moves_the_sum_by_at_most_its_bound_and_nobody_else
        sensitivity-of-users: learning Cohort.noisy_mean: call clip.finish =>
            (rows.detach().to(torch.float64) / clipping_norm).nan_to_num()
online/test_cohort.py
    test_all_that_a_user_is_in_is_accounted
        sensitivity-releases-not-paid: learning online_mechanism: expression releases => 1
"""


def _faults(table: str) -> Iterator[Fault]:
    file = test = ""
    for line in table.replace("\n" + " " * 12, " ").strip().splitlines():
        depth, text = len(line) - len(line.lstrip()), line.strip()
        if depth == 0:
            file = text
        elif depth == 4:
            test = f"tests/{file}::{text}"
        else:
            name, place, edit = text.split(": ", 2)
            short, _, function = place.partition(" ")
            (file_of,) = ROOT.glob(f"primorl/**/{short.replace('.', '/')}.py")
            module = ".".join(file_of.relative_to(ROOT).with_suffix("").parts)
            kind, _, expressions = edit.partition(" ")
            make: Callable[..., Edit] = getattr(edits, kind)
            yield Fault(name, module, function, make(*expressions.split(" => ")), test)


FAULTS = list(_faults(TABLE))
