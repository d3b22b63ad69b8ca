"""Ports: which are free, and listening on one address only."""

import socket

import pytest

from deadpool.host.ports import free_port, listen_at, why_taken


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_is_free_until_somebody_listens_there(host: str) -> None:
    with listen_at(host, backlog=1) as listening:
        port = listening.getsockname()[1]
        assert why_taken(host, port) != ""
    assert why_taken(host, port) == ""
    assert why_taken(host, free_port(host)) == ""


def test_other_addresses_are_not_listened_on() -> None:
    with listen_at("127.0.0.1", backlog=1) as listening, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", listening.getsockname()[1]))


def test_no_address_of_this_machine_says_so() -> None:
    assert why_taken("192.0.2.1", 0) == "Cannot assign requested address"
