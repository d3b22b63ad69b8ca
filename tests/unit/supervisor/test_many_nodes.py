"""A job of 16,384 nodes through a start and the loss of a node, in virtual time: what is done for each node looks at no other."""

from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP, Slot, SlotKind
from deadpool.supervisor.deadlines import deadlines
from deadpool.supervisor.model.commands import SendOrder, SendToAll
from deadpool.supervisor.model.events import NodesLost
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.recovery.protocol import STORM_SEATS
from deadpool.supervisor.relays import GROUP, Relays

NODES = 16_384
_LOST = 300
_STEP = 5


def _slots(node: int) -> tuple[Slot, ...]:
    """Returns what the node's vault holds: its rank's snapshot, and the replica of the rank before."""
    held = ((SlotKind.SNAPSHOT, node), (SlotKind.REPLICA, (node - 1) % NODES))
    return tuple(Slot(kind=kind, rank=rank, generation=1, step=_STEP) for kind, rank in held)


def test_a_node_of_16384_is_lost() -> None:
    scene = Scene(nnodes=NODES, nproc_per_node=1, spares=1)
    scene.validated = False
    for node in range(NODES + 1):
        scene.hello(node)
    scene.open_store()
    assert len(scene.took(messages.StartRanks)) == NODES
    for rank in range(NODES):
        scene.say(rank, messages.RankJoined(generation=1, rank=rank, pid=1000 + rank))
        progress = messages.RankProgress(
            rank=rank, pid=1000 + rank, step=_STEP, commit_step=_STEP, steps_done=_STEP, exposed_stall_s=0.0
        )
        scene.say(rank, messages.Heartbeat(generation=1, ranks=(progress,)))
    assert scene.state.phase is Phase.RUN

    lost = NODES // 2
    scene.lose(lost)
    assert len(scene.took(messages.Quiesce)) == NODES
    assert [node for node, _ in scene.took(messages.Assign)] == [NODES]
    assert len(deadlines(scene.state)) == 2  # of the joiner, and of all others
    scene.open_store()
    for rank in range(NODES):
        live = _STEP if rank != lost else NO_STEP
        home = rank if rank != lost else NODES
        scene.say(home, messages.RankPrepared(generation=2, rank=rank, live_generation=1, live_step=live, commit_step=_STEP))
        scene.say(home, messages.VaultReport(generation=2, slots=_slots(rank) if rank != lost else ()))
    plans = scene.took(messages.Reform)
    assert len(plans) == NODES
    assert {order.resume_step for _, order in plans} == {_STEP}
    scene.bring_up(_STEP)
    assert scene.state.phase is Phase.RUN
    (record,) = scene.state.recovery.records
    assert (record.node, record.spare, record.steps_reexecuted) == (f"node{lost}", f"node{NODES}", 1)

    silent = {f"node{7 * node}": "silent for 3.0 s" for node in range(_LOST)}
    commands = scene.job.handle(NodesLost(event_id=1 << 30, lost=silent), now_s=scene.now_s)
    (order,) = [each.order for each in commands if isinstance(each, SendOrder | SendToAll)]  # one for all, and one generation
    assert isinstance(order, messages.Quiesce)
    assert scene.state.generation == 3
    for node_id in silent:
        scene.hello(int(node_id.removeprefix("node")))
    assert not scene.state.roster.vacancies()
    assert scene.state.generation == 3 + STORM_SEATS  # not one for each that comes back


def test_16384_agents_find_their_relays_and_another_one_when_theirs_is_lost() -> None:
    relays, homes = Relays(above=1000), dict[str, str]()

    def settle(routes: list[tuple[str, messages.Route]]) -> None:
        while routes:
            node, route = routes.pop()
            if route.relays:
                homes.pop(node, None)
                routes += relays.opened(node, node)
            else:
                homes[node] = route.through
                routes += relays.joined(node, int(node), through=route.through)

    for node in range(NODES):
        settle(relays.joined(str(node), node))
    assert len(set(homes.values())) <= NODES / GROUP + 1
    lost = homes[str(NODES - 1)]
    orphans = [orphan for orphan, relay in homes.items() if relay == lost]
    relays.left(lost)
    for orphan in orphans:
        del homes[orphan]
        settle(relays.joined(orphan, int(orphan)))
    assert len(orphans) <= GROUP
    assert lost not in homes.values()
    assert max(sum(relay == each for relay in homes.values()) for each in set(homes.values())) <= GROUP
