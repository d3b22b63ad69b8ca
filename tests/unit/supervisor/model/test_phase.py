"""The phases: each move that is not in the table is refused, and what is written of them is what the table says."""

import itertools
import textwrap

import pytest
from supervising import CONFIG

from deadpool.supervisor import core
from deadpool.supervisor.model.phase import Phase, diagram
from deadpool.supervisor.model.state import JobState

LEGAL = {
    ("assemble", "start"), ("assemble", "end"),
    ("start", "start"), ("start", "run"), ("start", "recover"), ("start", "end"),
    ("run", "start"), ("run", "recover"), ("run", "finish"), ("run", "end"),
    ("recover", "recover"), ("recover", "start"), ("recover", "run"), ("recover", "end"),
    ("finish", "start"), ("finish", "run"), ("finish", "recover"), ("finish", "end"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_a_job_moves_only_as_it_may(before: Phase, after: Phase) -> None:
    state = JobState.new(CONFIG)
    state.phase = before
    if (before, after) in LEGAL:
        state.move(after)
        assert state.phase is after
        return
    with pytest.raises(AssertionError, match=f"{before} -> {after}"):
        state.move(after)


def test_the_core_shows_the_table() -> None:
    assert core.__doc__ is not None
    assert textwrap.indent(diagram(), "    ") in core.__doc__
