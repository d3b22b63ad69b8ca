"""Which of two agents is the node, and which of one agent's streams counts."""

from deadpool.proto.messages import Hello
from deadpool.supervisor.failures.node_claims import Claim, Claims


def _hello(incarnation: int, stream: int = 1) -> Hello:
    return Hello(node_id="node0", hint=0, host="h", port=1, pid=1, generation=0, incarnation=incarnation, stream=stream)


def test_the_agent_that_was_started_later_is_the_node() -> None:
    claims = Claims()
    said = [claims.claim(_hello(incarnation), None) for incarnation in (5, 6, 5, 6)]
    assert said == [Claim.TAKES_OVER, Claim.TAKES_OVER, Claim.REFUSED, Claim.GOES_ON]


def test_a_hello_that_comes_late_through_a_relay_opens_nothing() -> None:
    claims = Claims()
    assert claims.claim(_hello(5, stream=1), None) is Claim.TAKES_OVER
    assert claims.claim(_hello(5, stream=3), None) is Claim.GOES_ON
    assert claims.claim(_hello(5, stream=2), None) is Claim.LATE
    assert claims.claim(_hello(6, stream=1), None) is Claim.TAKES_OVER, "another agent counts from one"
