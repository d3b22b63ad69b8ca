"""Two ranks that break their generation in the midst of what they do in groups, form it again, and say which groups stayed open.

After each reform every group must sum what this very call has put into it: half of a call that was left in one would show.
"""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import until

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.torch_internals import TCPStore

GROUPS = 6


class Rank:
    """`made`: groups of both ranks, beside the default one."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank, self.other = rank, 1 - rank
        self._port = port
        self.control = TCPStore("127.0.0.1", port, is_master=False)
        self._meetings = 0
        self.attempts = 1  # at the next generation
        self.groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None)
        self.groups.init_default(rank=rank, world_size=2, generation=1, store=self.client())
        self.made: list[Any] = [dist.new_group([0, 1]) for _ in range(GROUPS)]

    def client(self) -> TCPStore:
        return TCPStore("127.0.0.1", self._port, is_master=False)

    def meet(self) -> None:
        self._meetings += 1
        self.control.set(f"met/{self._meetings}/{self.rank}", "")
        self.control.wait([f"met/{self._meetings}/{self.other}"])

    def open_groups(self) -> list[Any]:
        return [each._opened[0] if each._opened is not None else None for each in self.made]

    def break_up(self) -> None:
        self.meet()
        self.groups.break_generation(self.groups.generation, "the test")

    def reform(self) -> list[int]:
        """Returns which of the groups have stayed open, and are fit for use."""
        before = self.open_groups()
        until(self.groups.have_ended, 30, "what was under way is cut off")
        self.groups.let_go()
        generation = self.groups.generation + self.attempts
        self.groups.reform(generation=generation, store=self.client(), timeout_s=30, cancelled=Event())
        self.attempts = 1
        kept = [index for index, (now, then) in enumerate(zip(self.open_groups(), before, strict=True)) if now is then]
        for index, group in enumerate(self.made):
            if group._opened is None:
                continue  # not all hold it
            value = torch.tensor(float(index + 100 * self.rank))
            dist.all_reduce(value, group=group)
            assert value == 2 * index + 100, f"group {index}: {value}"
            self.tell(group, float(index))
        return kept

    def tell(self, group: Any, value: float) -> None:
        """A message from rank 0 to rank 1."""
        message = torch.full((), value)
        if self.rank == 0:
            dist.send(message, 1, group=group)
        else:
            message.zero_()
            dist.recv(message, 0, group=group)
            assert message == value


def idle(rank: Rank) -> None:
    for group in rank.made:
        dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
        dist.barrier(group)
        dist.monitored_barrier(group)
        rank.tell(group, 3.0)
        got: list[Any] = [None, None]
        dist.all_gather_object(got, rank.rank, group=group)


def inside(rank: Rank) -> None:
    """One rank is in a call of each group but the first, the other is not. A root and a sender may be through with theirs."""
    if rank.rank == 0:
        rank.made[1].allreduce([torch.full((), 1000.0)])
        rank.made[2].broadcast(torch.full((), 1000.0), 0)
        dist.isend(torch.full((), 1000.0), 1, group=rank.made[3])
        dist.irecv(torch.zeros(()), 1, group=rank.made[4])
    else:
        dist.irecv(torch.zeros(()), 0, group=rank.made[5])


def begun_by_both(rank: Rank) -> None:
    """Nobody waits for the works, which have ended within."""
    works: list[Any] = [group.allreduce([torch.full((), 1000.0)]) for group in rank.made]
    if rank.rank == 0:
        works.append(dist.isend(torch.full((), 1000.0), 1, group=rank.made[3]))
    else:
        works.append(dist.irecv(torch.zeros(()), group=rank.made[3]))
    until(lambda: all(work._inner is None or work._inner.is_completed() for work in works), 30, "they have ended")


def connection_lost(rank: Rank) -> None:
    if rank.rank == 1:
        rank.open_groups()[0].shut()


def wrong_use(rank: Rank) -> None:
    if rank.rank == 0:
        with pytest.raises(RuntimeError, match="ProcessGroupGloo"):
            rank.made[2].allreduce([torch.ones(1), torch.ones(2, dtype=torch.int32)]).wait()


def called_past_the_wrapper(rank: Rank) -> None:
    if rank.rank == 0:
        rank.made[1]._get_backend(torch.device("cpu")).allreduce([torch.ones(1)])


def made_in_a_step(rank: Rank) -> None:
    rank.made.append(dist.new_group([0, 1]))


def destroyed_by_both(rank: Rank) -> None:
    dist.destroy_process_group(rank.made.pop(0))


def failed_reform(rank: Rank) -> None:
    """One rank gives up after the meeting, the other when that one does not connect."""
    rank.break_up()
    generation = rank.groups.generation + 1
    with pytest.raises(UnavailableError):
        rank.groups.reform(generation=generation, store=rank.client(), timeout_s=0.0 if rank.rank else 0.5, cancelled=Event())
    rank.attempts += 1


def destroyed_by_one(rank: Rank) -> None:
    """Then the numbers of the later ones differ: each name means another group on the other rank."""
    if rank.rank == 0:
        dist.destroy_process_group(rank.made.pop(0))


SCENARIOS: tuple[Callable[[Rank], None], ...] = (
    idle,
    inside,
    begun_by_both,
    connection_lost,
    wrong_use,
    called_past_the_wrapper,
    failed_reform,
    made_in_a_step,
    destroyed_by_both,
    destroyed_by_one,
)


def rank_main(number: int, port: int, results: Connection) -> None:
    torch.set_num_threads(1)
    rank = Rank(number, port)
    for scenario in SCENARIOS:
        scenario(rank)
        rank.break_up()
        results.send(rank.reform())
    results.close()
    rank.groups.close()
    os._exit(0)


def kept_on_both_ranks() -> dict[str, tuple[list[int], list[int]]]:
    """Returns which groups stayed open in each scenario, as rank 0 and as rank 1 have it."""
    context = multiprocessing.get_context("spawn")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    ranks = [context.Process(target=rank_main, args=(rank, store.port, there)) for rank, (_, there) in enumerate(pipes)]
    for process in ranks:
        process.start()
    for _, there in pipes:
        there.close()
    try:
        return {scenario.__name__: (pipes[0][0].recv(), pipes[1][0].recv()) for scenario in SCENARIOS}
    finally:
        for process in ranks:
            process.kill()
            process.join()
        for here, _ in pipes:
            here.close()
