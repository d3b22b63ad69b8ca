"""The edges by which replicas travel by MPI: what becomes of them is noted, nothing follows from it. Over JobState."""

from deadpool.proto.messages import EdgeChanged
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState


def edge_changed(state: JobState, node_id: str, changed: EdgeChanged) -> None:
    if state.phase is Phase.END:
        return  # all edges end with the job
    if changed.lost:
        text = f"edge {node_id}->{changed.holder} lost at generation {changed.generation}: {changed.lost}"
        state.note("edge_lost", node=node_id, holder=changed.holder, text=text)
    else:
        state.note("edge_open", node=node_id, holder=changed.holder, pids=changed.pids)
