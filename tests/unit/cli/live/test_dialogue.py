"""The keys of the live view."""

import pytest

from deadpool.cli.live.dialogue import Dialogue, Request, WantedDrain, WantedInjection, keys_in, pressed


def after(text: str) -> tuple[Dialogue, list[Request]]:
    dialogue, requests = Dialogue(), []
    for key in text:
        dialogue, request = pressed(dialogue, key)
        requests += [request] if request is not None else []
    return dialogue, requests


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("dnode1\n", [WantedDrain(node="node1")]),
        ("d1\r", [WantedDrain(node="1")]),
        ("ikill-rank 2\n", [WantedInjection(kind="kill-rank", target=2)]),
        ("ikill-spare\n", [WantedInjection(kind="kill-spare", target=0)]),
        ("dnodx\x7fe1\n", [WantedDrain(node="node1")]),
        ("dnode1\x1b", []),
        ("d\n", []),
        ("xyz", []),
        ("dnode1\ndnode2\n", [WantedDrain(node="node1"), WantedDrain(node="node2")]),
    ],
)
def test_what_is_typed_is_asked_for(text: str, asked: list[Request]) -> None:
    dialogue, requests = after(text)
    assert requests == asked
    assert dialogue.command is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ikill-cat 1\n", "kill-cat: no such failure"),
        ("ikill-rank\n", "kill-rank: say which rank"),
        ("ikill-rank x\n", "kill-rank: say which rank"),
        ("lone\n", "one is no rank"),
    ],
)
def test_what_cannot_be_asked_for_is_said(text: str, says: str) -> None:
    dialogue, requests = after(text)
    assert not requests
    assert says in dialogue.lines(80)[0]


def test_logs_are_shown_until_they_are_closed() -> None:
    assert after("l2\n")[0].logs_of == 2
    assert "Esc closes the logs" in after("l2\n")[0].lines(80)[0]
    assert after("l2\n\x1b")[0].logs_of is None
    assert after("lq")[0].over is False, "what is being typed is no key"
    assert after("q")[0].over


def test_the_line_shows_what_is_being_typed() -> None:
    assert after("dno")[0].lines(80) == ["drain which node? no_"]
    assert after("")[0].lines(80) == ["q quit  d drain  l logs  i inject"]


def test_a_message_that_is_longer_than_the_line_has_lines_of_its_own() -> None:
    dialogue = Dialogue(
        message="there is no live node 'node9': live ones are node0, node1, node2 and 61 more, all of them members"
    )
    assert dialogue.lines(80) == [
        "there is no live node 'node9': live ones are node0, node1, node2 and 61 more,",
        "all of them members",
        "q quit  d drain  l logs  i inject",
    ]


@pytest.mark.parametrize(
    ("data", "keys"), [(b"q", ["q"]), (b"ab", ["a", "b"]), (b"\x1b", ["\x1b"]), (b"\x1b[A", []), (b"\xff", [])]
)
def test_keys_that_send_several_characters_are_left_out(data: bytes, keys: list[str]) -> None:
    assert list(keys_in(data)) == keys
