"""Asks a running job's supervisor: the Status service, with the job's token."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import grpc

from deadpool.cli.launcher.job_dirs import read_endpoint
from deadpool.host.errors import ConfigError, DeadpoolError, UnavailableError
from deadpool.proto import convert
from deadpool.proto.doors import open_channel
from deadpool.proto.generated import status_pb2_grpc
from deadpool.proto.grpc_options import CHANNEL_OPTIONS
from deadpool.proto.messages import Endpoint
from deadpool.proto.messages import status as status_messages
from deadpool.proto.secret import TOKEN_KEY, read_private

if TYPE_CHECKING:
    from deadpool.cli.holdings import JobHoldings
    from deadpool.proto.vault.holdings import SlotHoldings

_TIMEOUT_S = 5.0
_AGAIN_S = 0.05  # between two tries to connect
_DIAGNOSE_TIMEOUT_S = 15.0
_VAULTS_AT_A_TIME = 32
_HOLDINGS_TRIES = 20
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Client:
    """Calls of the Status service. Everything raises UnavailableError when the supervisor does not answer."""

    def __init__(self, channel: grpc.Channel, token: str) -> None:
        self._stub = status_pb2_grpc.StatusStub(channel)
        self._token = token
        self._metadata = ((TOKEN_KEY, token),)

    def status(self, *, timeout_s: float = _TIMEOUT_S) -> status_messages.JobStatus:
        return self.ask_status(timeout_s=timeout_s)()

    def ask_status(self, *, timeout_s: float = _TIMEOUT_S) -> Callable[[], status_messages.JobStatus]:
        """Asks, and returns what waits for the answer: that takes a while, in which something else can be done."""
        request = convert.encode(status_messages.StatusRequest())
        asked = self._stub.GetStatus.future(request, timeout=timeout_s, metadata=self._metadata)

        def answer() -> status_messages.JobStatus:
            status = convert.decode(asked.result())
            assert isinstance(status, status_messages.JobStatus)
            return status

        return answer

    def holdings(self, status: status_messages.JobStatus) -> "JobHoldings":
        """Returns what the vaults of the nodes in `status` hold; those that do not answer are named.

        Those in which a rank's slots were just being written are asked again, a few times.
        """
        from deadpool.cli.holdings import job_holdings  # what knows of vaults: most commands do without

        living = {
            each.node_id: Endpoint(node_id=each.node_id, host=each.host, port=each.port)
            for each in status.nodes
            if each.role != "lost"
        }
        homes = {rank.rank: node.node_id for node in status.nodes for rank in node.ranks}
        vaults, silent, asked = {}, {}, set(living)
        for _ in range(_HOLDINGS_TRIES):
            with ThreadPoolExecutor(_VAULTS_AT_A_TIME) as pool:
                for node_id, answer in zip(asked, pool.map(self._vault, [living[each] for each in asked]), strict=True):
                    if isinstance(answer, DeadpoolError):
                        silent[node_id] = str(answer)
                    else:
                        vaults[node_id] = answer
            found = job_holdings(status, vaults, silent.values())
            asked = {homes[rank] for rank in found.missing}
            if not asked:
                break
        return found

    def _vault(self, endpoint: Endpoint) -> "tuple[SlotHoldings, ...] | DeadpoolError":
        from deadpool.trainer_hooks.protection.replicate import VaultClient

        vault = VaultClient(endpoint, self._token)
        try:
            return vault.holdings()
        except DeadpoolError as error:
            return error
        finally:
            vault.close()

    def events(self, *, follow: bool) -> Iterator[str]:
        """Yields each event's JSON line: all so far, and with `follow` those to come until the job's end."""
        request = convert.encode(status_messages.EventsRequest(follow=follow))
        timeout_s = None if follow else _TIMEOUT_S
        for line in self._stub.Events(request, timeout=timeout_s, metadata=self._metadata):
            yield line.json

    def inject(self, kind: str, target: int, step: int) -> None:
        """Raises ConfigError when the supervisor refuses."""
        request = convert.encode(status_messages.InjectRequest(kind=kind, target=target, step=step))
        self._check(self._stub.Inject(request, timeout=_TIMEOUT_S, metadata=self._metadata).error)

    def drain(self, node: str, reason: str, *, undo: bool = False) -> None:
        """Raises ConfigError when the supervisor refuses: nothing has changed then."""
        request = convert.encode(status_messages.DrainRequest(node=node, reason=reason, undo=undo))
        self._check(self._stub.Drain(request, timeout=_TIMEOUT_S, metadata=self._metadata).error)

    def give_up(self, node: str, reason: str) -> None:
        """The node counts as lost. Raises ConfigError when there is no such node."""
        request = convert.encode(status_messages.DrainRequest(node=node, reason=reason, gone=True))
        self._check(self._stub.Drain(request, timeout=_TIMEOUT_S, metadata=self._metadata).error)

    def diagnose(self) -> status_messages.Diagnosis:
        """Returns what the ranks are in; it takes as long as the slowest agent needs for the stacks."""
        request = convert.encode(status_messages.DiagnoseRequest())
        diagnosis = convert.decode(self._stub.Diagnose(request, timeout=_DIAGNOSE_TIMEOUT_S, metadata=self._metadata))
        assert isinstance(diagnosis, status_messages.Diagnosis)
        return diagnosis

    def stop(self, reason: str) -> None:
        request = convert.encode(status_messages.StopRequest(reason=reason))
        self._check(self._stub.Stop(request, timeout=_TIMEOUT_S, metadata=self._metadata).error)

    @staticmethod
    def _check(error: str) -> None:
        if error:
            raise ConfigError(error)


@contextmanager
def connected(folder: Path, *, to_the_end: bool = False, ready_s: float | None = None) -> Iterator[Client]:
    """Yields a client of the job in that folder. `to_the_end`: losing the supervisor is how watching a job ends, no error.

    UnavailableError: it does not answer, at first within `ready_s`, as in every call after that.
    """
    target = read_endpoint(folder)
    name = f"job {target.job_id} at {target.endpoint} (supervisor pid {target.pid})"
    token = read_private(folder / "token")
    if not _is_listened_to(target.endpoint, ready_s or _TIMEOUT_S):
        raise UnavailableError(f"{name} does not answer")
    with open_channel(target.endpoint, token, CHANNEL_OPTIONS) as channel:
        try:
            yield Client(channel, token)
        except grpc.RpcError as error:
            call = cast(grpc.Call, error)
            if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise UnavailableError(f"{name} does not answer") from error
            if not (to_the_end and call.code() in _GONE):
                raise UnavailableError(f"{name}: {call.code().name} {call.details()}") from error


def _is_listened_to(endpoint: str, within_s: float) -> bool:
    """Waits for somebody to listen there. gRPC's own way to wait keeps a channel from being closed for a fifth of a second."""
    host, _, port = endpoint.rpartition(":")
    deadline_s = time.monotonic() + within_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            socket.create_connection((host.strip("[]"), int(port)), left_s).close()
        except OSError:
            time.sleep(min(_AGAIN_S, left_s))
        else:
            return True
    return False
