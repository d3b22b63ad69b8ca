"""Replicas by a real MPI pair: whatever becomes of it, each Put is acknowledged, and nothing of it is left."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi_edges import ITEM_BYTES, MpiEdge, mpi_edge, needs_mpi

from deadpool.host.errors import DeadpoolError, SnapshotError

pytestmark = [
    pytest.mark.vault,  # an MPI library's files in /dev/shm are looked for
    needs_mpi,
]


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[MpiEdge]:
    with mpi_edge(tmp_path) as edge:
        yield edge


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_killed_process_of_a_pair_costs_no_replica_and_there_is_a_new_pair(edge: MpiEdge, side: str) -> None:
    async def kills() -> None:
        met = await edge.met()
        await edge.put(1)
        assert edge.carried() == [1]
        os.kill(met.pids[side == "receiver"], signal.SIGKILL)
        await edge.put(2)  # by TCP, or by the pair that dies
        lost = await edge.until(lambda changed: bool(changed.lost))
        assert (lost.holder, lost.generation) == ("node1", 1)
        again = await edge.met()
        assert not set(again.pids) & set(met.pids)
        await edge.put(3)
        assert edge.carried()[-1] == 3

    edge.run(kills())
    assert edge.held() == {2, 3}


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_frozen_process_of_a_pair_is_not_waited_for(edge: MpiEdge, side: str) -> None:
    async def freezes() -> None:
        met = await edge.met()
        os.kill(met.pids[side == "receiver"], signal.SIGSTOP)
        await edge.put(1)
        assert edge.carried() == []
        assert edge.held() == {1}
        await edge.until(lambda changed: bool(changed.lost))

    edge.run(freezes())


def test_what_an_older_generation_sends_is_refused_and_the_pair_lives(edge: MpiEdge) -> None:
    async def fenced() -> None:
        met = await edge.met()
        edge.holder.server.fence(2)
        with pytest.raises(DeadpoolError):
            await edge.put(1, generation=1)
        await edge.put(2, generation=2)
        assert edge.carried() == [2]
        os.kill(met.pids[0], 0)  # it lives
        edge.pairs.wanted([], 3)
        await edge.gone(met.pids)

    edge.run(fenced())
    assert edge.held() == {2}


def test_what_the_holder_has_is_not_sent_again(edge: MpiEdge) -> None:
    async def puts() -> None:
        await edge.met()
        assert await edge.put(1) == await edge.put(2) > 2 * ITEM_BYTES
        assert await edge.put(3, like=1) == ITEM_BYTES
        assert await edge.put(4, like=1) > 2 * ITEM_BYTES, "state 2 lies where it goes to"
        assert edge.carried() == [1, 2, 3, 4]

    edge.run(puts())
    assert edge.held() == {3, 4}


def test_a_state_travels_while_it_is_copied(edge: MpiEdge) -> None:
    async def puts() -> None:
        await edge.met()
        await edge.put(1, before_last=lambda: edge.await_begun(1))
        assert edge.carried() == [1]

    edge.run(puts())
    assert edge.held() == {1}


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_a_process_of_a_pair_is_killed_while_the_state_is_copied(edge: MpiEdge, side: str) -> None:
    async def kills() -> None:
        met = await edge.met()
        await edge.put(1)
        alive = [met.pids[side == "receiver"]]

        def kill_once() -> None:  # by TCP the parts come once more
            if alive:
                edge.await_begun(2)
                os.kill(alive.pop(), signal.SIGKILL)

        await edge.put(2, before_last=kill_once)
        assert edge.carried() == [1]
        assert edge.held() == {1, 2}
        await edge.met()
        await edge.put(3)
        assert edge.carried() == [1, 3]

    edge.run(kills())
    assert edge.held() == {2, 3}


def test_a_state_that_comes_to_nothing_while_it_travels_is_never_sealed_and_the_pair_lives(edge: MpiEdge) -> None:
    async def gives_up() -> None:
        met = await edge.met()
        await edge.put(1)

        def give_up() -> None:
            edge.await_begun(2)
            raise SnapshotError("its copy has come to nothing")

        with pytest.raises(SnapshotError, match="come to nothing"):
            await edge.put(2, before_last=give_up)
        assert edge.held() == {1}
        await edge.put(2)
        assert edge.carried() == [1, 2]
        os.kill(met.pids[0], 0)  # it lives

    edge.run(gives_up())
    assert edge.held() == {1, 2}


def test_a_generation_that_ends_while_a_state_is_copied_has_the_pair_leave_the_slot_and_live(edge: MpiEdge) -> None:
    async def fenced() -> None:
        met = await edge.met()
        await edge.put(1)

        def fence() -> None:
            edge.await_begun(2)
            edge.holder.server.fence(2)

        with pytest.raises(DeadpoolError):
            await edge.put(2, before_last=fence)
        assert edge.held() == {1}
        await edge.put(3, generation=2)
        assert edge.carried() == [1, 3]
        os.kill(met.pids[1], 0)  # it lives

    edge.run(fenced())
    assert edge.held() == {1, 3}


def test_a_pair_that_cannot_meet_says_why(edge: MpiEdge) -> None:
    edge.holder.close_vault()

    async def waits() -> None:
        lost = await edge.until(lambda changed: bool(changed.lost))
        assert "node1: its agent is not here" in lost.lost

    edge.run(waits())
