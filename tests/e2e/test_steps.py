"""Jobs over guard.steps: ranks and nodes die in the middle of a loop body, and the training is the unbroken one, bit for bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_jobs import Example, assert_one_recovery
from launching import Launcher
from training import ROOT, Training, assert_same, finished

pytestmark = pytest.mark.e2e

KILL_BOTH = ("--inject", "kill-node:1@7", "--inject", "kill-rank:0@13")
Unbroken = Callable[[Example], Training]
long = pytest.mark.long


def training(*arguments: str) -> Example:
    return Example(ROOT / "tests" / "support" / "iterated.py", arguments, ranks_per_node=1)


KINDS = {
    "workers": training("workers"),
    "stateful-workers": training("stateful-workers", "--accumulate", "2"),
    "persistent": training("persistent", "--rehearse"),
    "iterable": training("iterable", "--accumulate", "3"),
}


@pytest.mark.parametrize("kind", ["workers", *(pytest.param(kind, marks=long) for kind in KINDS if kind != "workers")])
def test_the_training_is_the_unbroken_one(launcher: Launcher, unbroken_example: Unbroken, kind: str) -> None:
    reference, broken = unbroken_example(KINDS[kind]), finished(KINDS[kind].start(launcher, *KILL_BOTH))
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["survivors_kept_processes"] for recovery in recoveries] == [True, True]
    assert broken.summary["committed_steps_lost"] == 0
    if kind != "persistent":  # a joiner's rehearsals say what no rank has computed
        assert last_said(broken.losses.with_name("all")) == last_said(reference.losses)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_drained(launcher: Launcher, unbroken_example: Unbroken, kind: str) -> None:
    moved = KINDS[kind].drained(launcher)
    moved.assert_same_as(unbroken_example(KINDS[kind]))
    assert_one_recovery(moved)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_started_again_from_disk(launcher: Launcher, unbroken_example: Unbroken, kind: str, tmp_path: Path) -> None:
    """The loader is in another epoch, and in another process, than where it began."""
    KINDS[kind].assert_starts_again_from_disk(launcher, tmp_path / "disk", unbroken_example(KINDS[kind]))


@long
@pytest.mark.parametrize("kind", KINDS)
def test_under_torchrun(unbroken_example: Unbroken, kind: str, tmp_path: Path) -> None:
    KINDS[kind].under_torchrun(tmp_path).assert_same_as(unbroken_example(KINDS[kind]))


@long
@pytest.mark.parametrize("kind", KINDS)
def test_without_hooks(launcher: Launcher, unbroken_example: Unbroken, kind: str) -> None:
    KINDS[kind].without_hooks(launcher).assert_same_as(unbroken_example(KINDS[kind]))


@pytest.mark.parametrize("how", ["raise", pytest.param("break", marks=pytest.mark.long)])
def test_a_script_that_stumbles_over_what_is_not_real_is_replaced_and_not_blamed(launcher: Launcher, how: str) -> None:
    """The survivor's step runs to its end on values that nobody has communicated, and the script does not bear them."""
    reference, broken = (
        training("map").start(launcher),
        training("map", "--at-an-echo", how).start(launcher, "--inject", "kill-rank:1@8"),
    )
    finished(broken)
    finished(reference)
    assert_same(reference.folder / "losses", broken.folder / "losses")
    assert_same(reference.folder / "digests", broken.folder / "digests")
    assert [event["rank"] for event in broken.events() if event["event"] == "rank_raised"] == []
    (echo,) = rows(broken.folder / "echoes")
    assert echo["rank"] == 0


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def last_said(path: Path) -> dict[tuple[int, int], str]:
    return {(row["rank"], row["step"]): row["loss"] for row in rows(path)}
