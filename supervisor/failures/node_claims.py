"""Two agents claim to be the same node: it is the one that was started later. Of one agent's streams the newest counts. Pure."""

from enum import StrEnum

from deadpool.proto.messages import Hello
from deadpool.supervisor.model.membership import Node


class Claim(StrEnum):
    REFUSED = "refused"  # a later one is known: this one must end its ranks before they do anything
    TAKES_OVER = "takes over"  # the one that was the node until now must end
    GOES_ON = "goes on"  # nobody else claims it; the same agent may have a stream still
    LATE = "late"  # the same agent has opened another stream since: this one, through a relay that was cut off, is none


class Claims:
    """`incarnations`: of each node's newest agent. `streams`: the newest of that one."""

    def __init__(self) -> None:
        self._incarnations: dict[str, int] = {}
        self._streams: dict[str, int] = {}

    def claim(self, hello: Hello, known: Node | None) -> Claim:
        """`known`: what the job knows of the node, which outlives the supervisor."""
        seen = self._incarnations.get(hello.node_id, 0)
        newest = max(seen, known.session.incarnation if known is not None else 0)
        if hello.incarnation < newest:
            return Claim.REFUSED
        if hello.incarnation == seen and hello.stream < self._streams.get(hello.node_id, 0):
            return Claim.LATE
        self._incarnations[hello.node_id], self._streams[hello.node_id] = hello.incarnation, hello.stream
        return Claim.TAKES_OVER if hello.incarnation > newest else Claim.GOES_ON
