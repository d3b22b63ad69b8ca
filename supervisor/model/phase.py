"""The phases of a job, and the only moves between them."""

from enum import StrEnum


class Phase(StrEnum):
    ASSEMBLE = "assemble"  # agents come
    START = "start"  # all ranks are started, from nothing
    RUN = "run"
    RECOVER = "recover"  # ranks are brought back to a state, or a node is waited for
    FINISH = "finish"  # the ranks have left their step loops: they are between two, or behind the last
    END = "end"


MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.ASSEMBLE: frozenset({Phase.START, Phase.END}),
    Phase.START: frozenset({Phase.START, Phase.RUN, Phase.RECOVER, Phase.END}),
    Phase.RUN: frozenset({Phase.START, Phase.RECOVER, Phase.FINISH, Phase.END}),
    Phase.RECOVER: frozenset({Phase.RECOVER, Phase.START, Phase.RUN, Phase.END}),
    Phase.FINISH: frozenset({Phase.START, Phase.RUN, Phase.RECOVER, Phase.END}),
    Phase.END: frozenset(),
}


def diagram() -> str:
    """Returns the moves as a table: a row for each phase, a mark under each phase that it may be followed by."""
    width = max(map(len, Phase)) + 2
    rows = ["".join(f"{text:<{width}}" for text in ("", *Phase)).rstrip()]
    for phase, following in MOVES.items():
        marks = ("->" if each in following else "." for each in Phase)
        rows.append("".join(f"{text:<{width}}" for text in (phase, *marks)).rstrip())
    return "\n".join(rows)
