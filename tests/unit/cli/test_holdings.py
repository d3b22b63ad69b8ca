"""`deadpool status --state`: who holds what of the state, from what the vaults say."""

from dataclasses import replace

from rich.console import Console, RenderableType

from deadpool.cli.commands.tables import holdings_view
from deadpool.cli.holdings import HeldGroup, as_plain, job_holdings
from deadpool.proto.messages import NO_STEP, SlotKind
from deadpool.proto.messages.status import JobStatus, NodeStatus, RankStatus
from deadpool.proto.vault.holdings import Holding, SlotHoldings

SHARED = Holding(group="parameters", items=4, size_bytes=4000, ranks=(1,))
UNIQUE = Holding(group="optimizer state", items=8, size_bytes=1500, ranks=())


def node(index: int, *ranks: int) -> NodeStatus:
    return NodeStatus(
        node_id=f"node{index}", index=index, role="member" if ranks else "spare", host="h", heartbeat_age_s=0.0, cpu_share=0.0,
        memory_share=0.0, shm_free_bytes=0, standins_ready=0,
        ranks=tuple(RankStatus(rank=rank, pid=1, step=8, commit_step=7, exposed_stall_s=0.0) for rank in ranks),
    )  # fmt: skip


STATUS = JobStatus(
    job_id="j", phase="run", generation=2, step=8, commit_step=7, steps_per_s=1.0, world_size=2, hooked=True, exposed_stall_s=0.0,
    nodes=(node(0, 0), node(1, 1), node(2)),
)  # fmt: skip


def slot(kind: SlotKind, rank: int, step: int, generation: int = 2) -> SlotHoldings:
    shared = replace(SHARED, ranks=(1 - rank,))
    return SlotHoldings(kind=kind, rank=rank, generation=generation, step=step, holdings=(shared, UNIQUE))


VAULTS = {
    "node0": [slot(SlotKind.SNAPSHOT, 0, 7), slot(SlotKind.SNAPSHOT, 0, 8), slot(SlotKind.REPLICA, 1, 7)],
    "node1": [slot(SlotKind.SNAPSHOT, 1, 7), slot(SlotKind.REPLICA, 0, 8)],
    "node2": [slot(SlotKind.REPLICA, 0, 6, 1), slot(SlotKind.SNAPSHOT, 1, 9, 1)],  # held replicas once, and rank 1
}


def test_what_the_ranks_hold_alike_and_each_for_itself() -> None:
    held = job_holdings(STATUS, VAULTS)
    assert (held.step, held.silent) == (7, ())
    assert held.groups == (
        HeldGroup(
            group="parameters", items=4, size_bytes=4000, same=True, ranks=(0, 1), nodes=("node0", "node1"), replicas=()
        ),
        HeldGroup(
            group="optimizer state", items=8, size_bytes=1500, same=False, ranks=(0,), nodes=("node0",), replicas=("node1",)
        ),
        HeldGroup(
            group="optimizer state", items=8, size_bytes=1500, same=False, ranks=(1,), nodes=("node1",), replicas=("node0",)
        ),
    )  # fmt: skip


def test_ranks_of_one_node_with_copies_in_the_same_places_are_one_row() -> None:
    status = replace(STATUS, nodes=(node(0, 0, 1), node(1)))
    alone = [replace(slot(SlotKind.SNAPSHOT, rank, 7), holdings=(UNIQUE,)) for rank in (0, 1)]
    copies = [slot(SlotKind.REPLICA, rank, 7) for rank in (0, 1)]
    (held,) = job_holdings(status, {"node0": alone, "node1": copies}).groups
    assert (held.ranks, held.items, held.size_bytes, held.nodes, held.replicas) == ((0, 1), 16, 3000, ("node0",), ("node1",))


def test_a_rank_whose_slots_were_being_written_is_named() -> None:
    held = job_holdings(STATUS, VAULTS | {"node1": [slot(SlotKind.REPLICA, 0, 8)]})
    assert held.missing == (1,)
    assert "not seen, for it was being written: rank 1" in shown(holdings_view(held))
    assert job_holdings(STATUS, {"node0": VAULTS["node0"]}, silent=("vault of node1: gone",)).missing == ()


def test_before_the_first_commit_nothing_is_known() -> None:
    held = job_holdings(replace(STATUS, commit_step=NO_STEP), VAULTS, silent=("vault of node3: gone",))
    assert held.groups == ()
    assert as_plain(held) is None
    text = shown(holdings_view(held))
    assert "not yet known" in text
    assert "node3: gone" in text


def test_the_table() -> None:
    text = shown(holdings_view(job_holdings(STATUS, VAULTS)))
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "parameters 4 3.91 KiB ranks 0-1 node0, node1" in rows
    assert "optimizer state 8 1.46 KiB rank 0: unique node0 node1" in rows


def shown(view: RenderableType) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(view)
    return capture.get()
