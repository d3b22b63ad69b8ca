"""What a simulated rank finds where it is to restore from: its state's content, and who contradicts it."""

from typing import TYPE_CHECKING

from deadpool.proto import messages
from deadpool.proto.messages import CopyConflict, SlotKind, Source, SourceKind
from deadpool.proto.vault.slots import StateId

if TYPE_CHECKING:
    from sim.node import SimNode
    from sim.rank import SimRank


def fetch(rank: "SimRank", source: Source, state: StateId) -> tuple[int | None, tuple[CopyConflict, ...]]:
    """Returns the content of the state that the source gives, None when it is not there; and the peers that contradict it."""
    node = rank.node
    match source.kind:
        case SourceKind.LIVE:
            assert rank.member is not None
            return rank.content if rank.member.live == state else None, ()
        case SourceKind.VAULT:
            return node.vault.content(SlotKind.SNAPSHOT, source.rank, state), ()
        case SourceKind.REPLICA:
            return _from_replica(rank, source, state)
        case SourceKind.ELSEWHERE:
            assert source.endpoint is not None
            other = _served(node, source.endpoint)
            return None if other is None else other.vault.content(SlotKind.SNAPSHOT, source.rank, state), ()
        case SourceKind.PEER:
            held = [_peer_content(node, peer, state.step) for peer in source.peers]
            return next((content for content in held if content is not None), None), ()


def was_apart(rank: "SimRank", source: Source, step: int) -> bool:
    """Returns whether the snapshot that this rank was restored from says that nobody else holds the same."""
    if source.kind is SourceKind.LIVE:
        return rank.protection.apart
    if source.kind is SourceKind.PEER:
        return False
    state = StateId(generation=source.slot_generation, step=step)
    kind = SlotKind.REPLICA if source.kind is SourceKind.REPLICA else SlotKind.SNAPSHOT
    node = rank.node if source.endpoint is None else rank.node.other(source.endpoint)
    return node is not None and not node.vault.peers(kind, source.rank, state)


def _from_replica(rank: "SimRank", source: Source, state: StateId) -> tuple[int | None, tuple[CopyConflict, ...]]:
    """The replica has what is the rank's own; what it holds together with others comes from their snapshots."""
    assert source.endpoint is not None
    node, truth = rank.node, rank.truth
    holder = _served(node, source.endpoint)
    content = None if holder is None else holder.vault.content(SlotKind.REPLICA, source.rank, state)
    if content is None:
        return None, ()
    peers = {peer: held for peer in source.peers if (held := _peer_content(node, peer, state.step)) is not None}
    claimed = holder is not None and bool(holder.vault.peers(SlotKind.REPLICA, source.rank, state))
    apart = claimed and truth.are_apart(state.step)
    whole = {truth.right(held) for held in peers.values()} <= {truth.right(content)}
    truth.check(whole, f"rank {source.rank}: peers {source.peers} are of another branch")
    conflicts = tuple(
        CopyConflict(
            rank=source.rank, generation=state.generation, step=state.step, peer=peer.rank, peer_generation=peer.slot_generation
        )
        for peer, held in peers.items()
        if held != content or apart
    )
    if not apart and (content in peers.values() or not source.peers):
        return content, conflicts
    if conflicts and not apart:
        truth.cannot_restore(content, set(peers.values()))
    return None, conflicts


def _peer_content(node: "SimNode", peer: messages.Peer, step: int) -> int | None:
    other = _served(node, peer.endpoint)
    state = StateId(generation=peer.slot_generation, step=step)
    return None if other is None else other.vault.content(peer.kind, peer.rank, state)


def _served(node: "SimNode", endpoint: messages.Endpoint) -> "SimNode | None":
    """Returns the node whose vault is there, None while its agent gets no time: that is not waited for."""
    other = node.other(endpoint)
    return other if other is not None and not other.suspension.lasts else None
