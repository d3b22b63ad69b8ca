"""Small pictures and short numbers."""

import pytest

from deadpool.cli.live.marks import ASCII, UNICODE, bar, clock_text, glyphs_for, phase_bar, short, short_seconds, sparkline
from deadpool.proto.messages.status import PhaseTimes


def test_a_sparkline_shows_the_last_values_against_the_largest() -> None:
    assert sparkline([9.0, 0.0, 1.0, 2.0], 3, UNICODE) == "▁▅█"
    assert sparkline([1.0], 10, ASCII) == "#"
    assert sparkline([], 10, UNICODE) == sparkline([0.0], 10, UNICODE) == ""


@pytest.mark.parametrize(("share", "shown"), [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (7.0, "####"), (-1.0, "....")])
def test_a_bar_is_as_full_as_its_share(share: float, shown: str) -> None:
    assert bar(share, 4, ASCII) == shown


def test_a_phase_bar_is_exactly_as_wide_as_it_should_be() -> None:
    for width in range(1, 60):
        phases = PhaseTimes(detect=0.3, decide=0.001, quiesce=0.29, plan=0.002, reform=0.07, restore=0.062, first_step=0.155)
        assert sum(len(letters) for letters, _ in phase_bar(phases, width)) == width
    assert phase_bar(PhaseTimes(), 10) == []
    assert "".join(letters for letters, _ in phase_bar(PhaseTimes(quiesce=1, first_step=3), 8)) == "QQFFFFFF"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (42, "42 s"), (187, "3:07"), (7387, "2:03:07"), (86400 * 4 + 7387, "4 d 02:03:07")]
)
def test_a_length_of_time_is_as_people_write_it(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (999, "", "999"),
        (1000, "", "1k"),
        (12345.6, "", "12.3k"),
        (4.56e9, "B/s", "4.56 GB/s"),
        (-2500, "", "-2.5k"),
    ],
)
def test_a_number_has_three_digits(value: float, unit: str, text: str) -> None:
    assert short(value, unit) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0021, "2.1 ms"), (0.0999, "99.9 ms"), (0.83, "0.83 s"), (31.04, "31.0 s")])
def test_the_time_of_a_step_has_the_digits_that_matter(seconds: float, text: str) -> None:
    assert short_seconds(seconds) == text


def test_what_a_terminal_cannot_show_is_not_sent_to_it() -> None:
    assert glyphs_for("UTF-8") is UNICODE
    assert glyphs_for("ascii") is glyphs_for("iso8859-1") is ASCII
