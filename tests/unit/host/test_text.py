"""Text from outside can be sent, written and shown, whatever it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.host.text import TEXT_CHARS_MAX, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain\ttext\nwith ü and 漢字", "plain\ttext\nwith ü and 漢字"),
        ("img_\udcff\udcfe.png", r"img_\udcff\udcfe.png"),
        ("half an emoji \ud83d", r"half an emoji \ud83d"),
        ("\x1b[31mred\x1b[0m\x00\x7f\r\n", "\\x1b[31mred\\x1b[0m\\x00\\x7f\\r\n"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_of_a_long_text_both_ends_are_kept() -> None:
    shown = printable("first line\n" + "x" * 6_000_000 + "\nlast line")
    assert shown.startswith("first line\n")
    assert shown.endswith("\nlast line")
    assert f"[... {6_000_000 + 21 - TEXT_CHARS_MAX + 60} characters left out ...]" in shown
    assert printable(shown) == shown


@given(st.text(st.characters(codec=None), max_size=300), st.integers(62, 200))  # surrogates among them
def test_it_is_utf8_bounded_and_stays_what_it_is(text: str, chars_max: int) -> None:
    shown = printable(text, chars_max)
    shown.encode()
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    assert len(shown) <= 10 * chars_max
    if len(text) <= chars_max:
        assert printable(shown, len(shown)) == shown
