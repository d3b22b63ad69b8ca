"""The neighbours that hold this rank's replicas: sends each state's unique part to them, with patience for an agent's restart."""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

from deadpool.host.errors import SnapshotError, UnavailableError
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing, ReplicaSender, SlotPart
from deadpool.trainer_hooks.protection.outgoing import OutgoingState, Sums

RETRY_S = 0.2
_NICE = 5  # of the threads that send while the state is copied: the training waits for the copy, not for them
PATIENCE_S = 5.0  # with a holder that is out of reach: until then the supervisor has noticed that it is lost


class Holders:
    """Of one rank in one generation. All but `close` is for the protect thread alone."""

    def __init__(self, holders: Sequence[ReplicaSender], cancelled: threading.Event) -> None:
        self._holders = [_Holder(each, cancelled) for each in holders]
        self._cancelled = cancelled

    def __len__(self) -> int:
        return len(self._holders)

    def send(self, outgoing: OutgoingState) -> int:
        """Returns how many bytes were sent, once every holder has acknowledged the state, which lies in its slot.

        SnapshotError: a holder refuses, or stays out of reach. UnavailableError: the generation has ended.
        """
        return self._acknowledged([holder.put(outgoing) for holder in self._holders])

    def begin(self, outgoing: OutgoingState) -> "Sending":
        """Sends a state that is still being copied, to all holders side by side."""
        return Sending(self._holders, outgoing)

    def wait(self, sending: "Sending") -> int:
        """Returns, and raises, as `send`, once the state is copied or given up."""
        return self._acknowledged([future.result() for future in sending.futures])

    def close(self) -> None:
        """Ends what is under way; any thread."""
        for holder in self._holders:
            holder.sender.close()

    def _acknowledged(self, sent_bytes: Sequence[int]) -> int:
        if self._cancelled.is_set():
            raise UnavailableError("the generation ended before the replicas were acknowledged")
        return sum(sent_bytes)


class Sending:
    """A state under way. `futures`: of the bytes sent to each holder."""

    def __init__(self, holders: Sequence["_Holder"], outgoing: OutgoingState) -> None:
        self.outgoing = outgoing
        self.futures: list[Future[int]] = [Future() for _ in holders]
        for holder, future in zip(holders, self.futures, strict=True):
            threading.Thread(target=self._send, args=(holder, future), name="deadpool-replicate", daemon=True).start()

    def _send(self, holder: "_Holder", future: "Future[int]") -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            future.set_result(holder.put(self.outgoing))
        except BaseException as error:
            future.set_exception(error)


class _Holder:
    """One of them, and what it holds, as far as it has acknowledged it in this generation."""

    def __init__(self, sender: ReplicaSender, cancelled: threading.Event) -> None:
        self.sender, self._cancelled = sender, cancelled
        self._one_at_a_time = threading.Lock()  # a state that was given up may still be on its way
        self._reserved_bytes = 0
        self._acknowledged: dict[StateId, Sums] = {}

    def put(self, outgoing: OutgoingState) -> int:
        """Returns how many bytes were sent, 0 when the generation has ended meanwhile."""
        with self._one_at_a_time:
            return self._put(outgoing)

    def _put(self, outgoing: OutgoingState) -> int:
        request = outgoing.request
        until_s = time.monotonic() + PATIENCE_S
        while not self._cancelled.is_set():
            try:
                if outgoing.slot_bytes > self._reserved_bytes:
                    self.sender.reserve(request.rank, outgoing.slot_bytes)
                sent_bytes = self.sender.put(Following(outgoing, self._acknowledged))
            except UnavailableError as error:
                if time.monotonic() > until_s:
                    raise SnapshotError(str(error)) from error
                self._cancelled.wait(RETRY_S)
            else:
                self._reserved_bytes = max(self._reserved_bytes, outgoing.slot_bytes)
                kept = {state: sums for state, sums in self._acknowledged.items() if state.step == request.keep_step}
                self._acknowledged = kept | {StateId(generation=request.generation, step=request.step): outgoing.sums()}
                return sent_bytes
        return 0


class Following(Outgoing):
    """A state on its way to a holder that has acknowledged some others."""

    def __init__(self, outgoing: OutgoingState, acknowledged: dict[StateId, Sums]) -> None:
        self._outgoing, self._acknowledged = outgoing, acknowledged
        self.request, self.layout = outgoing.request, outgoing.layout

    def whole(self) -> Sequence[memoryview] | None:
        return self._outgoing.whole(next(reversed(self._acknowledged.values()), None))

    def parts(self, held: StateId) -> Iterator[SlotPart]:
        return self._outgoing.parts(self._acknowledged.get(held))

    def tail(self) -> tuple[bytes, bytes]:
        return self._outgoing.tail()
