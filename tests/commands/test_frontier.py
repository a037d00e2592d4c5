"""The points of the frontier, and their table."""

from primorl.commands import frontier


def test_points_beyond_reach_are_left_open() -> None:
    """A point whose target no multiplier reaches has no noise, and the table a dash."""
    points = frontier.frontier(
        1e-3,
        1e-9,
        100,
        ([1.0], [1, 400_000]),
        current=(None, 1),
        transitions_per_unit=None,
        queries=(),
        on_point=lambda: None,
    )
    assert points[0].noise_multiplier is not None
    assert points[1].noise_multiplier is points[1].noise_per_coordinate is None
    assert points[1].unit_updates == 100 * 400_000
    assert frontier.table(points).splitlines()[-1].split() == ["400000", "1", "-", "-", "4e+07", "-"]
