"""The job's token: made at launch, kept in a 0600 file, shown on every call; over raw TCP it is proven, never sent.

gRPC calls carry it as metadata (`TOKEN_KEY`). A TCP connection proves it both ways: the server sends a nonce, the client
answers with HMAC(token, "client" + nonce) and a nonce of its own, the server with HMAC(token, "server" + that nonce). A browser
shows a key that is made of the token (`view_key`), from which the token cannot be found.
"""

import hmac
import os
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path

from deadpool.host.errors import ConfigError, ProtocolError
from deadpool.proto.frames import receive_exactly

TOKEN_KEY = "deadpool-token"
_TLS_MARK = "tls-"  # with which the token of a job begins that speaks TLS
_NONCE_BYTES = 32
_PROOF_BYTES = 32
AUTH_TIMEOUT_S = 5.0
_VIEW_KEY_CHARS = 32


def make_token() -> str:
    return secrets.token_hex(32)


def tls_token(token: str) -> str:
    """Returns the token of a job that speaks TLS (doors.py); ConfigError when what that needs is not installed."""
    if find_spec("cryptography") is None:
        raise ConfigError("--tls needs the package cryptography: pip install 'deadpool-train[tls]'")
    return token if speaks_tls(token) else f"{_TLS_MARK}{token}"


def speaks_tls(token: str) -> bool:
    return token.startswith(_TLS_MARK)


def write_private(path: Path, text: str) -> None:
    """Writes the file so that no other user can read it, not even for a moment, and no reader sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    temporary.rename(path)


def read_private(path: Path) -> str:
    """Returns the file's text; ConfigError when another user could read or has written it."""
    stat = path.stat()
    if stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise ConfigError(f"{path}: must belong to you and be readable by you alone (chmod 600)")
    return path.read_text().strip()


def token_matches(token: str, shown: str | bytes | None) -> bool:
    shown_bytes = shown.encode() if isinstance(shown, str) else shown or b""
    return hmac.compare_digest(token.encode(), shown_bytes)


def view_key(token: str) -> str:
    """Returns the key with which a person may look at the job's page, and do nothing else."""
    return hmac.digest(token.encode(), b"dashboard", "sha256").hex()[:_VIEW_KEY_CHARS]


def _proof(token: str, side: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), side + nonce, "sha256")


def prove_as_client(connection: socket.socket, token: str) -> None:
    """Proves the token to the server and checks its proof; ProtocolError when it does not know the token."""
    connection.settimeout(AUTH_TIMEOUT_S)
    challenge, nonce = receive_exactly(connection, _NONCE_BYTES), os.urandom(_NONCE_BYTES)
    connection.sendall(_proof(token, b"client", challenge) + nonce)
    if not hmac.compare_digest(receive_exactly(connection, _PROOF_BYTES), _proof(token, b"server", nonce)):
        raise ProtocolError("the server does not know the job's token")
    connection.settimeout(None)


def check_as_server(connection: socket.socket, token: str) -> None:
    """Challenges the client and answers its nonce; ProtocolError when it does not know the token or takes too long."""
    connection.settimeout(AUTH_TIMEOUT_S)
    challenge = os.urandom(_NONCE_BYTES)
    try:
        connection.sendall(challenge)
        answer = receive_exactly(connection, _PROOF_BYTES + _NONCE_BYTES)
    except OSError as error:  # too late, or a scanner that hangs up
        raise ProtocolError(f"no answer to the challenge ({error})") from error
    if not hmac.compare_digest(answer[:_PROOF_BYTES], _proof(token, b"client", challenge)):
        raise ProtocolError("wrong answer to the challenge")
    connection.sendall(_proof(token, b"server", answer[_PROOF_BYTES:]))
    connection.settimeout(None)
