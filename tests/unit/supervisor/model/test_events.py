"""Losses of nodes that are found together are one event."""

from deadpool.supervisor.model.events import DrainRequested, Event, NodesLost, lost_together


def lost(event_id: int, *nodes: str) -> NodesLost:
    return NodesLost(event_id=event_id, lost=dict.fromkeys(nodes, "silent"))


def test_losses_that_follow_each_other_are_one_and_nothing_is_passed_over() -> None:
    between = DrainRequested(event_id=4, node="d", reason="")
    events: list[Event] = [lost(1, "a"), lost(2, "b", "c"), between, lost(5, "e")]
    assert lost_together(events) == [lost(1, "a", "b", "c"), between, lost(5, "e")]
    assert lost_together([]) == []
