"""The token: private files, and a proof over TCP that convinces both sides and never sends the token."""

import contextlib
import socket
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from deadpool.host.errors import ConfigError, ProtocolError
from deadpool.proto import secret
from deadpool.proto.frames import receive_exactly


@contextlib.contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def meet(client_token: str, server_token: str) -> tuple[BaseException | None, BaseException | None]:
    """Returns what each side raised; a side that refuses closes its end, as both callers do."""

    def close_after(prove: object, connection: socket.socket, token: str) -> None:
        assert callable(prove)
        try:
            prove(connection, token)
        except ProtocolError:
            connection.close()
            raise

    with pair() as (left, right), ThreadPoolExecutor() as pool:
        client = pool.submit(close_after, secret.prove_as_client, left, client_token)
        server = pool.submit(close_after, secret.check_as_server, right, server_token)
        return client.exception(timeout=50), server.exception(timeout=10)


def test_two_that_know_the_token_are_convinced() -> None:
    token = secret.make_token()
    assert meet(token, token) == (None, None)


def test_a_client_without_the_token_is_refused() -> None:
    client, server = meet(secret.make_token(), secret.make_token())
    assert isinstance(server, ProtocolError)
    assert "wrong answer" in str(server)
    assert isinstance(client, ProtocolError)


def test_a_server_without_the_token_is_found_out() -> None:
    token = secret.make_token()
    with pair() as (left, right), ThreadPoolExecutor() as pool:
        client = pool.submit(secret.prove_as_client, left, token)
        right.sendall(bytes(32))
        answer = receive_exactly(right, 64)
        right.sendall(answer[:32])  # the client's own proof, sent back
        error = client.exception(timeout=50)
    assert isinstance(error, ProtocolError)
    assert token.encode() not in answer


@pytest.mark.parametrize("garbage", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 4096])
def test_garbage_and_a_closed_connection_are_refused(garbage: bytes) -> None:
    with pair() as (left, right):
        left.sendall(garbage)
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError):
            secret.check_as_server(right, secret.make_token())


def test_a_connection_that_is_reset_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # sends a reset
        with accepted, pytest.raises(ProtocolError, match="no answer"):
            secret.check_as_server(accepted, secret.make_token())


def test_a_silent_client_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "AUTH_TIMEOUT_S", 0.01)
    with pair() as (_, right), pytest.raises(ProtocolError, match="no answer"):
        secret.check_as_server(right, secret.make_token())


def test_the_tokens_differ_and_are_compared_whole() -> None:
    token, other = secret.make_token(), secret.make_token()
    assert token != other
    assert secret.token_matches(token, token)
    assert secret.token_matches(token, token.encode())
    for shown in (other, "", None, token[:-1], token + "0"):
        assert not secret.token_matches(token, shown)


def test_a_private_file_is_private_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "token"
    secret.write_private(path, "abc\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.read_private(path) == "abc"
    secret.write_private(path, "d")
    assert secret.read_private(path) == "d"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_get_at_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    secret.write_private(path, "abc")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        secret.read_private(path)


@pytest.mark.skipif(find_spec("cryptography") is None, reason="--tls needs the extra tls")
def test_the_token_says_whether_its_job_speaks_tls() -> None:
    token = secret.make_token()
    assert not secret.speaks_tls(token)
    assert secret.speaks_tls(secret.tls_token(token))
    assert secret.tls_token(secret.tls_token(token)) == secret.tls_token(token)
