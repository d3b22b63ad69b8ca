"""How long a swap leaves the job exposed, and who then has the replicas."""

import pytest
from supervising import Scene

from deadpool.proto.config import Places
from deadpool.proto.messages import Assign, ProtectionChanged, Reform, Source, SourceKind


def committed(generation: int, step: int) -> ProtectionChanged:
    return ProtectionChanged(generation=generation, rank=0, step=step, reason="")


def kept_by(order: Assign) -> set[str]:
    return {holder.node_id for each in order.placements for holder in each.holders}


def swapped() -> Scene:
    """Returns a job whose node1 was lost at 100 s, and whose ranks 2 and 3 node2 has taken."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.lose(1)
    scene.wait(0.2)
    scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    return scene


@pytest.mark.parametrize("before_the_first_step", [True, False])
def test_from_the_failure_to_the_first_commit(before_the_first_step: bool) -> None:
    scene = swapped()
    if before_the_first_step:
        scene.wait(0.3)
        scene.say(0, committed(2, 4))
        scene.bring_up(4)
    else:
        scene.bring_up(4)
        assert [record.exposed_s for record in scene.state.recovery.records] == [-1.0]
        scene.wait(0.3)
        scene.say(0, committed(2, 4))
    scene.wait(1.0)
    scene.say(0, committed(2, 9))  # of another rank that had said so: only the first one counts
    (record,) = scene.state.recovery.records
    assert record.exposed_s == pytest.approx(0.5)
    (note,) = scene.notes("replicated_again")
    assert note.fields["step"] == 4
    assert note.fields["exposed_s"] == pytest.approx(0.5)
    assert scene.notes("protected_again") == []


def test_a_process_that_is_replaced_on_its_node_leaves_nothing_exposed() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    scene.say(0, committed(2, 5))
    assert [record.exposed_s for record in scene.state.recovery.records] == [-1.0]
    assert scene.notes("replicated_again") == []


def test_a_spare_that_keeps_the_replicas_takes_the_seat_and_has_them_itself() -> None:
    scene = Scene(spares=2, place_replicas=Places.SPARES)
    scene.start(commit_step=4)
    keepers = scene.state.recovery.keepers
    assert keepers == {0: ("node2",), 1: ("node3",)}
    scene.forget()
    scene.lose(1)
    assert [note.fields["node"] for note in scene.notes("spare_chosen")] == ["node3"]
    assert scene.state.recovery.keepers == keepers, "until there is a plan"
    assert [(node, kept_by(order)) for node, order in scene.took(Assign)] == [(3, {"node3"})], "of its predecessor"


def test_joiners_ask_those_who_have_replicas_also_while_new_ones_are_on_their_way() -> None:
    scene = Scene(spares=2, place_replicas=Places.SPARES)
    scene.start(commit_step=4)
    scene.lose(1)
    scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    assert scene.state.recovery.keepers == {0: ("node2",), 1: ("node2",)}
    scene.forget()
    scene.killed(3)
    assert [(node, kept_by(order)) for node, order in scene.took(Assign)] == [(3, {"node2", "node3"})]


def test_the_sources_of_a_swap_are_in_the_spares_own_vault() -> None:
    scene = Scene(place_replicas=Places.SPARES)
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    scene.prepare(0, 1, live_step=4, commit_step=4)
    scene.prepare(2, 3)
    scene.report(0, *scene.vault(0, 4)[:2])
    scene.report(2, *(each for each in scene.vault(0, 4) if each.kind == "replica"))
    sources: list[Source] = [source for _, order in scene.took(Reform) for source in order.sources]
    moved = [source for source in sources if source.rank >= 2]
    assert [(each.kind, each.endpoint and each.endpoint.node_id) for each in moved] == [(SourceKind.REPLICA, "node2")] * 2
    assert scene.notes("plan")[-1].fields["sources"] == {"live": 2, "replica_at_home": 2}
    assert scene.state.recovery.keepers == {0: ("node2",), 1: ("node0",)}, "no spare is left: the ring"
