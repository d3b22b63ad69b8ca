"""How fast bytes get from one machine to another, over one authenticated TCP connection as replicas take it.

    python -m deadpool.cli.doctor.throughput listen ADDRESS     prints its port, then what one sender reached
    python -m deadpool.cli.doctor.throughput send ADDRESS PORT

Both read the token, one line, from stdin.
"""

import contextlib
import socket
import sys
import threading
import time

from deadpool.host.errors import DeadpoolError
from deadpool.host.ports import listen_at
from deadpool.proto.secret import check_as_server, make_token, prove_as_client

_FOR_S = 0.5
_PART_BYTES = 4 << 20
_TIMEOUT_S = 20.0


def listen(address: str) -> socket.socket:
    listening = listen_at(address, backlog=1)
    listening.settimeout(_TIMEOUT_S)
    return listening


def receive(listener: socket.socket, token: str) -> None:
    """Takes all that one sender sends, and tells it how much that was."""
    connection, _ = listener.accept()
    with connection:
        check_as_server(connection, token)
        connection.settimeout(_TIMEOUT_S)
        buffer, received = bytearray(_PART_BYTES), 0
        while count := connection.recv_into(buffer):
            received += count
        connection.sendall(received.to_bytes(8, "big"))


def send(address: str, port: int, token: str) -> float:
    """Returns the bytes per second that have arrived."""
    with socket.create_connection((address, port), timeout=_TIMEOUT_S) as connection:
        prove_as_client(connection, token)
        connection.settimeout(_TIMEOUT_S)
        part, began_s = bytes(_PART_BYTES), time.monotonic()
        while time.monotonic() - began_s < _FOR_S:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        received = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
        return received / (time.monotonic() - began_s)


def within(address: str) -> float:
    """Returns the bytes per second from this machine to itself."""
    token = make_token()
    with listen(address) as listener:
        receiver = threading.Thread(target=_receive_quietly, args=(listener, token))
        receiver.start()
        try:
            return send(address, listener.getsockname()[1], token)
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # whoever still waits for a sender hears that none will come
            receiver.join()


def _receive_quietly(listener: socket.socket, token: str) -> None:
    with contextlib.suppress(DeadpoolError, OSError):  # the sender says what is wrong
        receive(listener, token)


def main() -> None:
    what, address, *rest = sys.argv[1:]
    token = sys.stdin.readline().strip()
    if what == "listen":
        with listen(address) as listener:
            print(listener.getsockname()[1], flush=True)
            receive(listener, token)
    else:
        print(send(address, int(rest[0]), token))


if __name__ == "__main__":
    main()
