"""Where machines meet: the endpoint as it is written, and whose it is."""

from typing import Any

import pytest

from deadpool.cli.nodes import rendezvous
from deadpool.cli.nodes.rendezvous import endpoint_of, own_host, rendezvous_of
from deadpool.host.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "endpoint", "here", "index"),
    [
        ({"rdzv-endpoint": "127.0.0.1:29411"}, "127.0.0.1:29411", True, 0),
        ({"rdzv-endpoint": "localhost"}, "127.0.0.1:29400", True, 0),
        ({"rdzv-endpoint": "192.0.2.7:29411"}, "192.0.2.7:29411", False, -1),
        ({"rdzv-endpoint": "[2001:db8::7]:29411"}, "[2001:db8::7]:29411", False, -1),
        ({"master-addr": "192.0.2.7", "node-rank": 2}, "192.0.2.7:29500", False, 2),
        ({"node-rank": 1}, "127.0.0.1:29500", True, 1),
        ({"master-addr": "127.0.0.1", "master-port": 5000, "node-rank": 0}, "127.0.0.1:5000", True, 0),
    ],
)
def test_whose_endpoint_it_is(given: dict[str, Any], endpoint: str, here: bool, index: int) -> None:
    found = rendezvous_of(given, None)
    assert found is not None
    assert (endpoint_of(found), found.here, found.index) == (endpoint, here, index)


def test_nothing_says_so() -> None:
    assert rendezvous_of({"rdzv-id": "7", "master-port": 29500}, None) is None


def test_bad_endpoints_are_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.invalid does not resolve"):
        rendezvous_of({"rdzv-endpoint": "nowhere.invalid:29400"}, None)
    with pytest.raises(ConfigError, match="join_timeout is a number"):
        rendezvous_of({"rdzv-endpoint": "localhost", "rdzv-conf": "join_timeout=soon"}, None)
    with pytest.raises(ConfigError, match="no such interface"):
        rendezvous_of({"rdzv-endpoint": "localhost"}, "nowhere7")


def test_the_interface_chooses_the_address() -> None:
    found = rendezvous_of({"rdzv-endpoint": "127.0.0.1:29400", "rdzv-conf": "join_timeout=3"}, "lo")
    assert found is not None
    assert (own_host(found, "lo"), found.join_timeout_s) == ("127.0.0.1", 3.0)


def test_names_of_nodes_differ() -> None:
    assert rendezvous.node_name() != rendezvous.node_name()
