"""gRPC's doors and ways to them, in the clear or (`--tls`) by TLS: which of the two, the job's token says.

With TLS both sides show a certificate that the job's own authority has signed. The authority's key (EC P-256) is derived from the
token, so whoever may come in can make what it needs, in its own memory: nothing is handed out, lies in a file or has to be
removed, and nobody without the token gets as far as saying a word. Each process has a key of its own.
"""

import datetime
import functools
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from deadpool.host.errors import ConfigError
from deadpool.proto.secret import speaks_tls

_NAME = "deadpool"  # on every certificate: the token says whose it is, addresses say nothing
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
_FROM, _UNTIL = (
    datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC),
)  # any clock

Options = Sequence[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class _Papers:
    """PEM."""

    authority: bytes
    certificate: bytes
    key: bytes


def open_channel(endpoint: str, token: str, options: Options) -> grpc.Channel:
    if not speaks_tls(token):
        return grpc.insecure_channel(endpoint, options=options)
    return grpc.secure_channel(endpoint, _to_server(token), options=_named(options))


def open_aio_channel(endpoint: str, token: str, options: Options) -> grpc.aio.Channel:
    if not speaks_tls(token):
        return grpc.aio.insecure_channel(endpoint, options=options)
    return grpc.aio.secure_channel(endpoint, _to_server(token), options=_named(options))


def listen(server: grpc.aio.Server, address: str, token: str) -> int:
    """Returns the port; RuntimeError when it cannot be had."""
    if not speaks_tls(token):
        return server.add_insecure_port(address)
    papers = _papers(token)
    pairs = [(papers.key, papers.certificate)]
    credentials = grpc.ssl_server_credentials(pairs, root_certificates=papers.authority, require_client_auth=True)
    return server.add_secure_port(address, credentials)


def _to_server(token: str) -> grpc.ChannelCredentials:
    papers = _papers(token)
    return grpc.ssl_channel_credentials(papers.authority, papers.key, papers.certificate)


def _named(options: Options) -> Options:
    return [*options, ("grpc.ssl_target_name_override", _NAME)]


@functools.cache
def _papers(token: str) -> _Papers:
    """Returns what this process shows, and by what it knows others: made once."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError("--tls needs the package cryptography: pip install 'deadpool-train[tls]'") from error
    derived = int.from_bytes(hmac.digest(token.encode(), b"the job's authority", "sha512"), "big")
    authority = ec.derive_private_key(derived % (_ORDER - 1) + 1, ec.SECP256R1())
    own = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{_NAME} job")])

    def signed(name: x509.Name, key: ec.EllipticCurvePublicKey, extension: x509.ExtensionType, *, critical: bool) -> bytes:
        builder = x509.CertificateBuilder(issuer, name, key, x509.random_serial_number(), _FROM, _UNTIL)
        certificate = builder.add_extension(extension, critical=critical).sign(authority, hashes.SHA256())
        return bytes(certificate.public_bytes(serialization.Encoding.PEM))

    return _Papers(
        authority=signed(issuer, authority.public_key(), x509.BasicConstraints(ca=True, path_length=0), critical=True),
        certificate=signed(
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)]),
            own.public_key(),
            x509.SubjectAlternativeName([x509.DNSName(_NAME)]),
            critical=False,
        ),
        key=own.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
