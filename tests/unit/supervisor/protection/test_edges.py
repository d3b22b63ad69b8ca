"""Edges by MPI are noted, and nothing follows from it."""

from supervising import Scene

from deadpool.proto.messages import EdgeChanged


def test_an_edge_that_opens_and_is_lost_is_noted_with_its_generation() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    scene.forget()
    scene.say(0, EdgeChanged(generation=1, holder="node1", pids=(7, 8)))
    scene.say(0, EdgeChanged(generation=1, holder="node1", lost="no progress for 5 s"))
    assert [note.fields for note in scene.notes("edge_open")] == [{"node": "node0", "holder": "node1", "pids": (7, 8)}]
    lost = {"node": "node0", "holder": "node1", "text": "edge node0->node1 lost at generation 1: no progress for 5 s"}
    assert [note.fields for note in scene.notes("edge_lost")] == [lost]


def test_that_edges_end_with_the_job_is_nothing_to_say() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    scene.stop()
    scene.say(0, EdgeChanged(generation=1, holder="node1", lost="node1: its agent is gone"))
    assert scene.notes("edge_lost") == []
