"""The two ends of a replication edge, an owner's and a holder's vault, with a real MPI pair between them."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from launching import until

from deadpool.agent.edges.launcher import find_launcher
from deadpool.agent.edges.pairs import MpiPairs
from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.errors import ConfigError
from deadpool.proto.messages import EdgeChanged, Endpoint, SlotKind
from deadpool.proto.secret import make_token
from deadpool.proto.vault.layout import SLOT_NAMES, Item, Layout, SlotFile, Tables, checksum, reserve, slot_capacity, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import Outgoing, SlotPart
from deadpool.proto.vault.wire import Put
from deadpool.trainer_hooks.protection.edge_client import EdgeClient
from deadpool.trainer_hooks.protection.replicate import VaultClient

TOKEN = make_token()
_STEPS = ("--steps", "200", "--step-s", "0.4", "--slower-from", "50")
GROWING = (str(Path(__file__).parent / "growing.py"), *_STEPS, "--grows-at", "3", "--grows-by", "64")
WAIT_S = 90.0
ITEM_BYTES, ITEMS = 3_000_001, 3  # 9 MB: three pieces, and none of them an item
CUTS = (0, 1000, ITEM_BYTES, 5_000_000)  # where parts of it begin


def mpi_is_here() -> bool:
    try:
        find_launcher()
    except ConfigError:
        return False
    return True


needs_mpi = pytest.mark.skipif(not mpi_is_here(), reason="needs mpi4py and an MPI launcher: pip install mpi4py mpich")


class Side:
    """One node: its vault and what serves it."""

    def __init__(self, root: Path, node_id: str) -> None:
        self.vault = Vault.create(root, "job", node_id)
        self.server = ReplicaServer("127.0.0.1", TOKEN)
        self.server.start(self.vault.folder)
        self.endpoint = Endpoint(node_id=node_id, host="127.0.0.1", port=self.server.port)
        self._open = True

    def close_vault(self) -> None:
        if self._open:
            self._open = False
            self.server.close()
            self.vault.remove()


class ByTcp(VaultClient):
    """Notes which states it has carried."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, TOKEN)
        self.steps: list[int] = []

    def put(self, outgoing: Outgoing) -> int:
        self.steps.append(outgoing.request.step)
        return super().put(outgoing)


class Copied(Outgoing):
    """A state whose last part lies in its slot once `before_last` has returned.

    Of it the first item alone differs from the state `like`; everything from all others.
    """

    def __init__(
        self, put: Put, parts: list[SlotPart], tables: bytes, page: bytes, like: int, before_last: Callable[[], None]
    ) -> None:
        self.request, self.layout = put, tables[: put.layout_bytes]
        self._parts, self._tail, self._like = parts, (tables[put.layout_bytes :], page), like
        self._before_last = before_last

    def whole(self) -> None:
        return None

    def parts(self, held: StateId) -> Iterator[SlotPart]:
        for part in self._parts:
            if part is self._parts[-1]:
                self._before_last()
            if held.step != self._like or part.to_offset < ITEM_BYTES:
                yield part

    def tail(self) -> tuple[bytes, bytes]:
        return self._tail


class MpiEdge:
    """Of rank 0, from node0 to node1: what a rank, the owner's agent and the holder's do, without the rest of a job."""

    def __init__(self, root: Path) -> None:
        self.owner, self.holder = Side(root, "node0"), Side(root, "node1")
        self._by_tcp = ByTcp(self.holder.endpoint)
        self._client = EdgeClient(self.owner.vault.folder, self.holder.endpoint, self._by_tcp)
        self._put: list[int] = []
        self._scratch = root / "scratch"
        self._scratch.mkdir()
        self._layout = Layout.place(
            [Item(key=f"w{index}", offset=0, nbytes=ITEM_BYTES, dtype="uint8", shape=(ITEM_BYTES,)) for index in range(ITEMS)], []
        )
        self._slot_bytes, self._offset = slot_capacity(self._layout.data_bytes, ITEMS, 100)
        path = slot_path(self.owner.vault.folder, SlotKind.SNAPSHOT, 0, "a")
        reserve(path, self._slot_bytes)
        self._slot = SlotFile(path)
        self.said: list[EdgeChanged] = []
        self._changed = asyncio.Event()
        self.pairs: MpiPairs

    def run(self, test: Coroutine[None, None, None]) -> None:
        async def within() -> None:
            self.pairs = MpiPairs(
                find_launcher(), self.owner.endpoint, self.owner.vault.folder, "job", self._scratch, self._heard
            )
            self.pairs.wanted([self.holder.endpoint], 1)
            try:
                await test
            finally:
                self.pairs.close()

        asyncio.run(within())

    def close(self) -> None:
        self._client.close()
        self.owner.close_vault()
        self.holder.close_vault()

    # ------------------------------------------------------------ the owner's agent

    def _heard(self, changed: EdgeChanged) -> None:
        self.said.append(changed)
        self._changed.set()

    async def until(self, wanted: Callable[[EdgeChanged], bool]) -> EdgeChanged:
        """Returns the first such thing that has not been asked for yet; what was said before it is over."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self.said:
                    if wanted(changed := self.said.pop(0)):
                        return changed
                self._changed.clear()
                await self._changed.wait()

    async def met(self) -> EdgeChanged:
        return await self.until(lambda changed: not changed.lost)

    async def gone(self, pids: Sequence[int]) -> None:
        """Returns when these processes have ended."""
        loop = asyncio.get_running_loop()
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            ended = loop.create_future()
            loop.add_reader(pidfd, ended.set_result, None)
            async with asyncio.timeout(WAIT_S):
                await ended
            loop.remove_reader(pidfd)
            os.close(pidfd)

    # ------------------------------------------------------------ the rank

    async def put(self, step: int, generation: int = 1, like: int = 0, before_last: Callable[[], None] = lambda: None) -> int:
        """Seals a state of rank 0, sends its replica and returns how many bytes that took. `like`, `before_last`: of Copied."""
        return await asyncio.to_thread(self._send, step, generation, like, before_last)

    def await_begun(self, step: int) -> None:
        """Returns when all but the last part of that state has come to the holder."""
        paths = [slot_path(self.holder.vault.folder, SlotKind.REPLICA, 0, name) for name in SLOT_NAMES]
        until(lambda: step in [_byte_of(path, self._offset + CUTS[-1] - 1) for path in paths], WAIT_S, f"state {step} has begun")

    def carried(self) -> list[int]:
        """Returns the states that were acknowledged without TCP."""
        return [step for step in self._put if step not in self._by_tcp.steps]

    def held(self) -> set[int]:
        return {slot.step for slot in self.holder.vault.slots()}

    def _send(self, step: int, generation: int, like: int, before_last: Callable[[], None]) -> int:
        data = self._slot.view[self._offset : self._offset + self._layout.data_bytes]
        data[:] = bytes([(like or step) % 251]) * len(data)
        data[:ITEM_BYTES] = bytes([step % 251]) * ITEM_BYTES
        sums = tuple(checksum(data[item.offset : item.offset + item.nbytes]) for item in self._layout.items)
        tables = Tables(layout=self._layout, meta=b"meta", checksums=sums)
        header = tables.header(tables.rest(), rank=0, generation=generation, step=step, data_offset=self._offset)
        put = Put(
            rank=0, generation=generation, step=step, keep_step=step - 1, data_offset=self._offset, data_bytes=len(data),
            layout_bytes=header.layout_bytes, tables_bytes=header.tables_bytes, layout_checksum=header.layout_checksum,
            sender_generation=generation,
        )  # fmt: skip
        parts = [
            SlotPart(path=self._slot.path, offset=self._offset + begin, view=data[begin:end], to_offset=begin)
            for begin, end in pairwise((*CUTS, len(data)))
        ]
        self._client.reserve(0, self._slot_bytes)
        copied = Copied(put, parts, self._layout.to_bytes() + tables.rest(), header.to_page(), like, before_last)
        sent_bytes = self._client.put(copied)
        self._put.append(step)
        return sent_bytes


def _byte_of(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(1)[0]


@contextmanager
def mpi_edge(root: Path) -> Iterator[MpiEdge]:
    edge = MpiEdge(root)
    try:
        yield edge
    finally:
        edge.close()
