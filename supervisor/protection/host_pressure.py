"""What nodes run out of: memory, /dev/shm, open files, the logs' disk. Over JobState."""

from deadpool.proto.messages import HostTrouble
from deadpool.supervisor.model.state import JobState


def host_trouble(state: JobState, node_id: str, trouble: HostTrouble) -> None:
    node = state.roster.nodes[node_id]
    if trouble.text:
        node.troubles[trouble.kind] = trouble.text
        state.note("host_trouble", node=node_id, kind=trouble.kind, text=trouble.text)
    elif node.troubles.pop(trouble.kind, None):
        state.note("host_trouble_over", node=node_id, kind=trouble.kind)
