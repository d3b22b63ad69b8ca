"""Injected failures in the training process: each strikes once, in the step."""

import resource
import threading

import pytest

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


@pytest.mark.parametrize("kind", [kind for kind, fault in FAULTS.items() if fault.hand is not Hand.TRAINER])
def test_kinds_of_other_hands_are_not_taken(kind: str) -> None:
    with pytest.raises(AssertionError, match="not the trainer's"):
        strikes(kind).in_step()
