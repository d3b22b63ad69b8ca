"""Which node does a rank's error name? Evidence, not proof: a broken connection has two ends and a network between. Pure."""

import re
from collections import Counter
from collections.abc import Sequence

from deadpool.supervisor.model.membership import Node

_HOST = re.compile(r"\[?(?P<host>[0-9A-Za-z][0-9A-Za-z.:-]*[0-9A-Za-z])\]?")


def named_node(error: str, node_id: str, nodes: Sequence[Node]) -> str:
    """Returns the node that an error on `node_id` names: by its name, or by an address that no other node has; else ""."""
    others = [node for node in nodes if node.node_id != node_id]
    named = [node.node_id for node in others if re.search(rf"\b{re.escape(node.node_id)}\b", error)]
    if not named:
        hosts = Counter(node.endpoint.host for node in nodes)
        words = [match["host"] for match in _HOST.finditer(error)]
        said = {*words, *(word.rsplit(":", 1)[0] for word in words)}
        named = [node.node_id for node in others if node.endpoint.host in said and hosts[node.endpoint.host] == 1]
    return named[0] if len(named) == 1 else ""
