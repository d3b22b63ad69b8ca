"""One real rank by itself: errors that are the user's, the call record, and what an old generation may still do."""

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launching import until
from torch._C._distributed_c10d import TCPStore

from deadpool.host.errors import UnavailableError
from deadpool.proto.call_record import CallRecord, GroupCalls
from deadpool.trainer_hooks.groups import sockets
from deadpool.trainer_hooks.groups.call_time import CallTime
from deadpool.trainer_hooks.groups.generation import Calls, Generation
from deadpool.trainer_hooks.groups.group import Group
from deadpool.trainer_hooks.groups.inner import InnerGroup, Membership
from deadpool.trainer_hooks.groups.ledger import Ledger
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.groups.works import ScatteredWork

PAIR = Membership(name="pair", rank=0, size=2, global_ranks=(0, 1), devices=("cpu",))


class Live:
    def __init__(self, folder: Path) -> None:
        self.record = CallRecord(folder / "record", create=True)
        self.reports: list[tuple[int, str]] = []
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.groups = Groups(
            record=self.record, host="127.0.0.1", on_broken=lambda generation, error: self.reports.append((generation, error))
        )
        self.groups.init_default(rank=0, world_size=1, generation=1, store=self.store)

    def reform(self) -> None:
        self.groups.reform(generation=self.groups.generation + 1, store=self.store, timeout_s=30, cancelled=Event())

    def row(self, group: str = "default_pg:all#0") -> GroupCalls:
        """Returns what the record says of a group, or of the opening of all groups of the same ranks."""
        return next(row for row in self.record.groups() if row.group == group)

    @property
    def group(self) -> Any:
        assert isinstance(dist.group.WORLD, Group)
        return dist.group.WORLD


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(tmp_path_factory.mktemp("live"))
    yield live
    live.groups.close()
    dist.destroy_process_group()


def test_the_callers_mistake_is_raised_and_breaks_nothing(live: Live) -> None:
    with pytest.raises(RuntimeError, match="ProcessGroupGloo"):
        live.group.allreduce([torch.ones(1), torch.ones(2, dtype=torch.int32)]).wait()
    assert not live.groups.broken
    assert live.reports == []


def test_calls_are_numbered_from_one_in_each_generation(live: Live) -> None:
    live.groups.break_generation(live.groups.generation, "the test")
    live.reform()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    row = live.row()
    assert (row.operation, row.entered, row.completed) == ("allreduce", 3, 3)
    live.groups.break_generation(live.groups.generation, "the test")
    dist.all_reduce(torch.ones(1))  # muted: not counted
    assert live.row().entered == 3
    live.reform()
    assert (live.row().entered, live.row().completed) == (0, 0)


@pytest.mark.parametrize("ends", ["wait", "future"])
def test_a_reduce_scatter_gives_its_part_and_counts_once(live: Live, ends: str) -> None:
    before, output = live.row().entered, torch.zeros(3)
    work = live.group._reduce_scatter_base(output, torch.arange(3.0))
    if ends == "wait":
        work.wait()
    else:
        (value,) = work.get_future().wait()
        assert value is output
    assert output.tolist() == [0, 1, 2]
    assert (live.row().entered, live.row().completed) == (before + 1, before + 1)


def test_a_reduce_scatter_that_a_break_has_ended_writes_nothing_later() -> None:
    class NotYet(dist.Work):
        ended = False

        def is_completed(self) -> bool:
            return self.ended

        def wait(self, timeout: object = None) -> bool:
            return True

    inner, written = NotYet(), list[str]()
    generation = Generation(1, lambda *_: None)
    calls = Calls(None, 0, (0, 1), generation.call_time, Ledger())
    args = (torch.zeros(1), torch.ones(1))
    work = ScatteredWork(generation, calls, inner, "_reduce_scatter_base", args, lambda: written.append("late"))
    generation.break_up("the test")
    assert work.is_completed()
    inner.ended = True
    assert generation.has_ended()
    assert work.wait()
    assert written == []


def test_groups_that_open_after_the_reform_was_cancelled_are_not_used(live: Live) -> None:
    """However soon they are open: the order that cancels may have come before the reform began, and is not repeated."""
    live.groups.break_generation(live.groups.generation, "the test")
    cancelled = Event()
    cancelled.set()
    with pytest.raises(UnavailableError):
        live.groups.reform(generation=live.groups.generation + 1, store=live.store, timeout_s=30, cancelled=cancelled)
    assert live.groups.muted
    live.reform()
    assert not live.groups.muted


def test_an_order_of_an_old_generation_is_ignored(live: Live) -> None:
    old = live.groups.generation
    live.groups.break_generation(old, "the test")
    live.reform()
    live.groups.break_generation(old, "late")
    assert not live.groups.broken


def test_a_failure_of_an_old_generation_touches_nothing(live: Live) -> None:
    old = live.groups._current
    live.groups.break_generation(old.number, "the test")
    live.reform()
    old.fail("late")
    assert not live.groups.broken
    assert live.reports == []


def test_a_failure_is_reported_once_and_settles(live: Live) -> None:
    current = live.groups._current
    current.fail("first")
    current.fail("second")
    assert live.groups.broken
    assert live.reports == [(current.number, "first")]
    live.reports.clear()
    live.reform()


def test_a_failure_is_reported_before_anything_is_muted() -> None:
    """Else a step whose calls were muted would count as complete: the main thread may be quicker than the one that reports."""
    broken_then: list[bool] = []
    generation = Generation(1, lambda *_: broken_then.append(generation.broken))
    generation.fail("lost")
    assert (broken_then, generation.broken) == ([False], True)


class _Running:
    """A work whose inner work runs."""

    operation = "allreduce"

    def __init__(self, *, only_reads: bool = False) -> None:
        self.only_reads = only_reads
        self.calls = Calls(None, 0, (0, 1), CallTime(), Ledger())
        self.runs = True

    def settle(self) -> None:
        pass

    def inner_ended(self) -> bool:
        return not self.runs


def test_operations_of_a_broken_generation_have_ended_before_its_tensors_are_believed(live: Live) -> None:
    work = _Running()
    live.groups._current.watch(work)
    live.groups.break_generation(live.groups.generation, "the test")
    assert not live.groups.have_ended()
    work.runs = False
    assert live.groups.have_ended()
    live.reform()


def test_a_send_that_gloo_has_lost_is_not_waited_for_once_its_connections_have_ended() -> None:
    """Until then it may still be sent: its tensor must stay as it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        of_gloo, _ = listener.accept()
        nothing: Any = None
        inner = InnerGroup(nothing, sockets.connections([listener.getsockname()], []), None, PAIR, "")
        generation, lost = Generation(1, lambda *_: None), _Running(only_reads=True)
        generation.add(inner, lost.calls)
        generation.watch(lost)
        generation.break_up("the test")
        assert not generation.wait_until_ended(0.01)
        of_gloo.close()
        until(lambda: generation.wait_until_ended(0.01), 50, "the lost send is given up")
        assert not generation.has_ended(), "nor freed"
        client.close()


def test_groups_made_and_destroyed_while_live_and_while_broken(live: Live) -> None:
    kept = dist.new_group([0])
    dist.destroy_process_group(dist.new_group([0]))
    live.groups.break_generation(live.groups.generation, "the test")
    late = dist.new_group([0])
    dist.all_reduce(torch.ones(1), group=late)
    live.reform()
    for group in (kept, late, dist.new_group([0])):
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert group.get_group_store() is not None


def test_a_rehearsal_between_live_steps_is_muted(live: Live) -> None:
    dist.all_reduce(torch.ones(1))
    entered = live.row().entered
    live.groups.rehearse(True)
    dist.all_reduce(torch.ones(1))
    made = dist.new_group([0])
    live.groups.rehearse(False)
    assert live.row().entered == entered
    for group in (None, made):
        dist.all_reduce(torch.ones(1), group=group)
    assert live.row().entered == entered + 1
    assert not live.groups.muted


def test_questions_have_answers_in_every_state(live: Live) -> None:
    def ask() -> None:
        assert live.group.group_name == live.group.getGroupName()
        assert live.group.size() == 1
        assert live.group._device_types[0] == torch.device("cpu")
        assert not live.group._get_backend(torch.device("cpu")).supports_coalescing
        assert dist.get_backend() == "gloo"  # as a script under torchrun would see it
        live.group._get_sequence_number_for_group()

    ask()
    live.groups.break_generation(live.groups.generation, "the test")
    ask()
    live.reform()
    ask()


def test_groups_made_in_a_generation_are_numbered_after_those_that_were_opened_again(live: Live) -> None:
    kept = [dist.new_group([0]) for _ in range(3)]
    held = len([ref for ref in live.groups._alive() if ref.membership.global_ranks == (0,)])
    live.groups.break_generation(live.groups.generation, "the test")
    live.reform()
    assert live.row("0").entered == live.row("0").completed == held
    made: Any = dist.new_group([0], group_desc="pair")
    assert made.met_as == f"0#{held}"
    assert (live.row("0").operation, live.row("0").entered) == ("new_group", held + 1)
    assert live.row(f"pair:0#{held}").entered == 0
    dist.destroy_process_group(made)
    assert f"pair:0#{held}" not in {row.group for row in live.record.groups()}
    assert dist.distributed_c10d._world.group_count > live.groups.generation << 20
    for group in kept:
        dist.destroy_process_group(group)


def test_a_call_on_a_group_that_not_all_hold_raises(live: Live) -> None:
    """Its answer would be the caller's own values, in a live generation."""
    group: Any = dist.new_group([0])
    group.leave_closed(group.met_as, live.groups.generation)
    with pytest.raises(RuntimeError, match="has not made it"):
        dist.all_reduce(torch.ones(1), group=group)
    with pytest.raises(RuntimeError, match="has not made it"):
        dist.monitored_barrier(group)
    assert not live.groups.broken
    live.groups.rehearse(True)
    dist.all_reduce(torch.ones(1), group=group)
    live.groups.rehearse(False)
