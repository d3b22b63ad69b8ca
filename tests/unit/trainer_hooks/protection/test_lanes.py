"""Several threads copy one state; what they have copied is told in the order of its groups."""

import os
import threading
from random import Random
from typing import Any

import pytest

from deadpool.proto.vault.layout import Item, Layout
from deadpool.trainer_hooks.protection.copy_groups import CopyGroup, groups_of
from deadpool.trainer_hooks.protection.lanes import LANES_MAX, WORTH_BYTES, Landing, lanes_for, lanes_here, run_lanes


def test_every_job_is_done_once_by_several_threads() -> None:
    done, names, both = list[int](), set[str](), threading.Barrier(2)

    def work(job: int) -> None:
        if job < 2:
            both.wait(30.0)  # two of them are under way at the same time
        done.append(job)
        names.add(threading.current_thread().name)

    run_lanes(2, 50, work)
    assert sorted(done) == [*range(50)]
    assert names == {threading.current_thread().name, "deadpool-copy"}


def test_the_first_error_ends_all_lanes_and_is_raised() -> None:
    done, this = list[int](), threading.current_thread()

    def work(job: int) -> None:
        if threading.current_thread() is not this:
            raise OSError("no room")
        for other in threading.enumerate():
            if other.name == "deadpool-copy":
                other.join(30.0)  # it has ended with its error
        done.append(job)

    with pytest.raises(OSError, match="no room"):
        run_lanes(2, 100, work)
    assert len(done) <= 1
    assert not any(thread.name == "deadpool-copy" for thread in threading.enumerate())


def test_one_thread_does_it_all_where_there_can_be_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    done: list[int] = []
    run_lanes(3, 5, done.append)
    assert done == [*range(5)]


class Heard:
    """As a state on its way to the holders: notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def landed(self, group: CopyGroup, sums: list[int]) -> None:
        self.told.append((group.first, *sums))

    def part_landed(self, group: CopyGroup, begin: int, end: int) -> None:
        self.told.append((group.first, begin, end))

    def item_landed(self, total: int) -> None:
        self.told.append(total)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_first_all_is_told_in_the_order_of_the_groups(seed: int) -> None:
    layout = Layout.place(Item(key=str(i), offset=0, nbytes=3 << 20, dtype="uint8", shape=(3 << 20,)) for i in range(6))
    groups = groups_of(layout)
    heard, draws = Heard(), Random(seed)
    landing = Landing(heard)  # type: ignore[arg-type]
    events = {
        number: [("part", 0, 1), ("part", 1, 2), ("item", 10 + number)] if number % 2 else [("group", 10 + number)]
        for number in range(len(groups))
    }
    expected = [(number, *event[1:]) if event[0] != "item" else event[1] for number, each in events.items() for event in each]
    left = {number: [*each] for number, each in events.items()}
    while left:
        number = draws.choice([*left])
        match left[number].pop(0):
            case ("part", begin, end):
                landing.part(number, groups[number], begin, end)
            case ("item", total):
                landing.item(number, total, 5)
            case ("group", total):
                landing.group(number, groups[number], [total], 7)
        left = {number: each for number, each in left.items() if each}
    assert heard.told == expected
    assert landing.sums == [10, 11, 12, 13, 14, 15]
    assert landing.copied_bytes == 3 * 5 + 3 * 7


def test_a_process_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(24))
    found = []
    for ranks in ("", "1", "8", "12", "24", "40"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        found.append(lanes_here())
    assert found == [LANES_MAX, LANES_MAX, 3, 2, 1, 1]
    assert [lanes_for(WORTH_BYTES, lanes, sends=sends) for lanes in (1, 3) for sends in (False, True)] == [1, 1, 3, 2]
    assert lanes_for(WORTH_BYTES - 1, 3, sends=False) == 1
