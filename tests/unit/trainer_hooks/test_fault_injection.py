"""Injected failures in the training process: each strikes once, in the step."""

import resource
import threading
from pathlib import Path

import pytest

from deadpool.proto.call_record import CallRecord
from deadpool.proto.faults import FAULTS, Hand
from deadpool.trainer_hooks.fault_injection import PendingInjections


def strikes(*kinds: str) -> PendingInjections:
    found = PendingInjections(lambda: None)
    for kind in kinds:
        found.add(kind)
    return found


def test_nothing_waits_nothing_happens() -> None:
    strikes().in_step()


def test_an_exception_once() -> None:
    found = strikes("raise-rank")
    with pytest.raises(RuntimeError, match="raise-rank"):
        found.in_step()
    found.in_step()


def test_memory_runs_out_and_the_limit_is_gone_again() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError):
        strikes("oom-rank").in_step()
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_network_is_lost_at_once() -> None:
    lost: list[str] = []
    PendingInjections(lambda: lost.append("lost")).add("lose-network-briefly")
    assert lost == ["lost"]


def test_a_hanging_rank_stays_in_its_step() -> None:
    thread = threading.Thread(target=strikes("hang-rank").in_step, daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()


@pytest.mark.parametrize(("held", "step"), [(None, 5), (6, 5)])
def test_a_step_that_no_injection_waits_for_is_not_held(tmp_path: Path, held: int | None, step: int) -> None:
    record = CallRecord(tmp_path / "record", create=True)
    record.hold(held)
    strikes().hold(record, step, threading.Event())


@pytest.mark.parametrize("step", [5, 6])  # the next one will do
def test_a_step_is_held_until_the_agent_has_injected(tmp_path: Path, step: int) -> None:
    writer, record = CallRecord(tmp_path / "record", create=True), CallRecord(tmp_path / "record", create=False)
    record.hold(5)
    thread = threading.Thread(target=strikes().hold, args=(writer, step, threading.Event()))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    record.hold(None)
    thread.join()


def test_a_step_is_not_held_beyond_its_generation_nor_once_the_failure_is_here(tmp_path: Path) -> None:
    record, over = CallRecord(tmp_path / "record", create=True), threading.Event()
    record.hold(5)
    strikes("raise-rank").hold(record, 5, over)
    over.set()
    strikes().hold(record, 5, over)


@pytest.mark.parametrize("kind", [kind for kind, fault in FAULTS.items() if fault.hand is not Hand.TRAINER])
def test_kinds_of_other_hands_are_not_taken(kind: str) -> None:
    with pytest.raises(AssertionError, match="not the trainer's"):
        strikes(kind).in_step()
