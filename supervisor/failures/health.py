"""What the nodes' readings say: kept for the failure rules, and a node that they speak against gets no ranks. Over JobState."""

from collections.abc import Sequence

from deadpool.proto.config import Readiness
from deadpool.proto.messages import Heartbeat, Reading
from deadpool.supervisor.failures.classify import unhealthy
from deadpool.supervisor.failures.rules import rules_of
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState


def heartbeat_read(state: JobState, node_id: str, heartbeat: Heartbeat) -> None:
    own = {
        "cpu_share": heartbeat.cpu_share,
        "memory_share": heartbeat.memory_share,
        "shm_free_bytes": float(heartbeat.shm_free_bytes),
    }
    _read(state, node_id, own, heartbeat.readings)


def hello_read(state: JobState, node_id: str, readings: Sequence[Reading]) -> None:
    """The node has just come, or come back: before it can be given ranks."""
    _read(state, node_id, {}, readings)


def _read(state: JobState, node_id: str, own: dict[str, float], readings: Sequence[Reading]) -> None:
    state.failures.readings[node_id] = own | {each.name: each.value for each in readings}
    spare = state.roster.nodes[node_id].role is NodeRole.SPARE and state.phase is not Phase.ASSEMBLE
    if not spare and state.config.spare_readiness is not Readiness.HOT:
        return  # a member's next failure is judged by them
    found = unhealthy(rules_of(state.config.failure_rules), state.failures.readings[node_id])
    state.failures.unwell.discard(node_id)
    if found is not None and not spare:
        state.failures.unwell.add(node_id)
    elif found is not None:
        rule, why = found
        state.roster.vacate(node_id, NodeRole.FAULTY)
        state.note("node_faulty", node=node_id, cause=why, rule=rule)
