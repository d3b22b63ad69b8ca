"""Readings decide: over a spare immediately, over a member when it fails."""

from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import Reading
from deadpool.supervisor.model.membership import NodeRole

_BAD = (Reading(name="gpu_ecc_uncorrected", value=2.0),)


def _read(scene: Scene, node: int, readings: tuple[Reading, ...]) -> None:
    scene.say(node, messages.Heartbeat(generation=scene.state.generation, readings=readings))


def test_a_spare_that_is_not_well_gets_no_ranks() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    _read(scene, 2, _BAD)
    (note,) = scene.notes("node_faulty")
    assert (note.fields["node"], note.fields["rule"]) == ("node2", "reading-ecc")
    scene.lose(1)
    assert not scene.took(messages.Assign)


def test_a_member_that_is_not_well_is_replaced_when_it_fails() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    _read(scene, 1, _BAD)
    assert scene.state.roster.nodes["node1"].role is NodeRole.MEMBER
    scene.killed(3)
    assert [node for node, _ in scene.took(messages.Assign)] == [2]
    assert scene.notes("diagnosis")[-1].fields["rule"] == "reading-ecc"


def test_a_node_that_comes_back_unwell_is_not_used() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.lose(2)
    scene.forget()
    hello = messages.Hello(node_id="node2", hint=2, host="h", port=2, pid=2, generation=0, readings=_BAD)
    scene.say(2, hello)
    assert scene.state.roster.nodes["node2"].role is NodeRole.FAULTY
