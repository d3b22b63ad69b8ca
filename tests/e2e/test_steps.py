"""Jobs over guard.steps: ranks and nodes die in the middle of a loop body, and the training is the unbroken one, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from launching import Job, Launcher
from training import assert_same, finished

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "iterated.py")
KILL_BOTH = ("--inject", "kill-node:1@7", "--inject", "kill-rank:0@13")


def start(launcher: Launcher, kind: str, *arguments: str, inject: tuple[str, ...] = ()) -> Job:
    nodes = ("--standalone", "--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--summary-json", "summary.json")
    return launcher.start(*nodes, *inject, SCRIPT, kind, "--steps", "20", *arguments)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("workers", ()),
        pytest.param("stateful-workers", ("--accumulate", "2"), marks=pytest.mark.long),
        pytest.param("persistent", ("--rehearse",), marks=pytest.mark.long),
        pytest.param("iterable", ("--accumulate", "3"), marks=pytest.mark.long),
    ],
)
def test_the_training_is_the_unbroken_one(launcher: Launcher, kind: str, arguments: tuple[str, ...]) -> None:
    reference, broken = (finished(start(launcher, kind, *arguments, inject=inject)) for inject in ((), KILL_BOTH))
    broken.assert_same_as(reference)
    recoveries = broken.summary["recoveries"]
    assert [recovery["survivors_kept_processes"] for recovery in recoveries] == [True, True]
    assert broken.summary["committed_steps_lost"] == 0
    if "--rehearse" not in arguments:  # else a joiner's rehearsals say what no rank has computed
        assert last_said(broken.losses.with_name("all")) == last_said(reference.losses)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["workers", "stateful"])
def test_started_again_from_disk(launcher: Launcher, kind: str) -> None:
    """The loader is in another epoch, and in another process, than where it began."""
    reference = start(launcher, kind)
    finished(reference)
    disk = ("--checkpoint-dir", str(launcher.folder / "checkpoints"))
    finished(start(launcher, kind, "--steps", "9", inject=disk))
    again = start(launcher, kind, inject=(*disk, "--resume", "auto"))
    finished(again)
    resumed = last_said(again.folder / "losses")
    assert resumed.keys() == {(rank, step) for rank in range(2) for step in range(9, 20)}
    assert resumed.items() <= last_said(reference.folder / "losses").items()
    assert sorted(rows(again.folder / "digests"), key=str) == sorted(rows(reference.folder / "digests"), key=str)


@pytest.mark.parametrize("how", ["raise", pytest.param("break", marks=pytest.mark.long)])
def test_a_script_that_stumbles_over_what_is_not_real_is_replaced_and_not_blamed(launcher: Launcher, how: str) -> None:
    """The survivor's step runs to its end on values that nobody has communicated, and the script does not bear them."""
    reference, broken = start(launcher, "map"), start(launcher, "map", "--at-an-echo", how, inject=("--inject", "kill-rank:1@8"))
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
