"""Threads for waits that may get stuck: who is waited for at the process's end, and what an idle one holds."""

import threading
import weakref

from deadpool.trainer_hooks.groups.daemon_threads import DaemonThreads


class Thing:
    """What a task holds."""


def test_the_end_waits_for_tasks_in_torch_and_names_those_that_do_not_end() -> None:
    daemons, go_on = DaemonThreads(), threading.Event()
    daemons.run(lambda: None, "short")
    assert daemons.wait_until_ended(30) == []
    daemons.run(go_on.wait, "stuck")
    daemons.run(go_on.wait, "may be cut off", in_torch=False)
    assert daemons.wait_until_ended(0.01) == ["stuck"]
    go_on.set()
    assert daemons.wait_until_ended(30) == []


def test_what_a_task_held_is_freed_before_it_counts_as_ended() -> None:
    """The last reference to a work of c10d must not be dropped by an idle thread while the interpreter goes down."""
    daemons = DaemonThreads()
    thing = Thing()
    freed = weakref.ref(thing)

    def run(held: Thing) -> None:
        daemons.run(lambda: print(held), "printing")

    run(thing)
    del thing
    assert daemons.wait_until_ended(30) == []
    assert freed() is None


def test_tasks_run_side_by_side_however_many() -> None:
    daemons, all_here = DaemonThreads(), threading.Barrier(6)
    for _ in range(2):  # the second time in threads that are there
        for _ in range(5):
            daemons.run(lambda: all_here.wait(30), "meeting")
        all_here.wait(30)
        assert daemons.wait_until_ended(30) == []
