"""Which node an error speaks of."""

import pytest

from deadpool.proto.messages import Hello
from deadpool.supervisor.failures.attribution import named_node
from deadpool.supervisor.model.membership import Node, Roster


def _nodes(*hosts: str) -> list[Node]:
    roster = Roster.empty(nnodes=len(hosts), nproc_per_node=1)
    for index, host in enumerate(hosts):
        roster.add(Hello(node_id=f"node{index}", hint=index, host=host, port=index, pid=1, generation=0))
    return roster.live()


_APART = ("10.0.0.1", "10.0.0.2", "10.0.0.12")
_GLOO = "allreduce: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:8109."
_NCCL = "socketProgress: Connection closed by remote peer trainer-b<45210>"


@pytest.mark.parametrize(
    ("error", "hosts", "node"),
    [
        ("vault of node1: connection refused", ("127.0.0.1",) * 3, "node1"),
        ("vault of node10: connection refused", _APART, ""),
        (_GLOO, _APART, "node1"),
        (_GLOO, ("127.0.0.1",) * 3, ""),
        (_GLOO, ("10.0.0.1", "10.0.0.2", "10.0.0.2"), ""),  # two nodes on one machine
        ("rendezvous store 10.0.0.12:7000: timed out", _APART, "node2"),
        (_NCCL, ("trainer-a", "trainer-b"), "node1"),
        ("connect from [fe80::2]:45 to [fe80::7]:46", ("fe80::2", "fe80::7"), "node1"),
        ("its own node0 and 10.0.0.1 are no peers", _APART, ""),
        ("10.0.0.2 and 10.0.0.12", _APART, ""),  # nothing follows from two
    ],
)
def test_the_peer_that_an_error_names(error: str, hosts: tuple[str, ...], node: str) -> None:
    assert named_node(error, "node0", _nodes(*hosts)) == node
