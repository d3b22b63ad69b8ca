"""Which sockets belong to a group, and that no other one is touched."""

import os
import socket

from deadpool.trainer_hooks.groups import sockets


def connected(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    return client, accepted


def test_only_the_groups_connections_are_shut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours, socket.create_server(("127.0.0.1", 0)) as other:
        client, accepted = connected(ours)
        stranger, at_stranger = connected(other)
        found = sockets.connections([ours.getsockname()], [])
        assert [each.getsockname() for each in found] == [accepted.getsockname()]
        sockets.shut(found)
        accepted.close()  # as Gloo does when it has read the end
        client.settimeout(50)
        assert client.recv(1) == b"", "the peer sees the end of the stream"
        stranger.sendall(b"x")
        assert at_stranger.recv(1) == b"x"
        with socket.create_connection(ours.getsockname()) as again:
            again.close()  # the listener still listens
        for each in (client, stranger, at_stranger):
            each.close()


def test_a_connection_is_known_by_either_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client, accepted = connected(listener)
        address = listener.getsockname()
        for found, expected in (
            (sockets.connections([address], []), {os.fstat(accepted.fileno()).st_ino}),
            (sockets.connections([], [address]), {os.fstat(client.fileno()).st_ino}),
        ):
            assert {os.fstat(each.fileno()).st_ino for each in found} == expected
            for each in found:
                each.close()
        client.close()
        accepted.close()


def test_new_listeners_are_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        found = sockets.listening_each([lambda: socket.create_server(("127.0.0.1", 0))] * 2)
        for made, addresses in found:
            with made:
                assert addresses == [made.getsockname()]
