"""The report of a drill, from events and files."""

from pathlib import Path
from typing import Any

from deadpool.proto.drill import FOLDER, WayBack
from deadpool.trainer_hooks.drill.report import WayTaken, ways_taken
from deadpool.trainer_hooks.drill.tables import Table, table_path
from deadpool.trainer_hooks.drill.verdict import SUSPECT, Divergence


def write(log_dir: Path, generation: int, loss: str, *ranks: int) -> None:
    for rank in ranks:
        for when, table in (("before", Table(items={"a": "1"})), ("after", Table(items={"a": "2"}, value={"returned": loss}))):
            path = table_path(log_dir / FOLDER, step=5, generation=generation, rank=rank, when=when)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(table.to_json())


def event(name: str, way: WayBack | None = None, **fields: Any) -> dict[str, Any]:
    return {"event": name, "step": 5, **({"way": way.value} if way is not None else {}), **fields}


def test_each_way_has_its_outcome(tmp_path: Path) -> None:
    write(tmp_path, 1, "0.5", 0, 1)
    write(tmp_path, 2, "0.5", 0, 1)
    write(tmp_path, 4, "0.6", 0, 1)
    events = [
        event("drilled", WayBack.NONE, generation=1),
        event("drill", WayBack.IN_PLACE, generation=1),
        event("drilled", WayBack.IN_PLACE, generation=2),
        event("drill", WayBack.PROCESS, generation=2),
        event("drilled", WayBack.PROCESS, generation=4),
        event("drill_left_out", WayBack.SPARE, generation=4, reason="there is no spare node (--spares)"),
        event("drill", WayBack.CHECKPOINT, generation=4),
        event("job_ended", exit_code=1, reason="the snapshot is of another model"),
    ]
    taken = ways_taken(tmp_path, events, 2)
    assert [(each.way, each.outcome) for each in taken] == [
        (WayBack.IN_PLACE, "same"), (WayBack.PROCESS, "differs"), (WayBack.SPARE, "left out"), (WayBack.CHECKPOINT, "failed"),
    ]  # fmt: skip
    lines = [line for each in taken for line in each.lines()]
    assert lines[0] == "step 5  in-place    same"
    assert lines[2].startswith("    ranks 0, 1: all state is the same before the step and what it returns differs")
    assert lines[3:] == [
        "step 5  spare       left out: there is no spare node (--spares)",
        "step 5  checkpoint  failed: the snapshot is of another model",
    ]


def test_what_was_found_before_is_not_said_again() -> None:
    finding = Divergence(ranks=(0,), cause=f"it differs{SUSPECT}attribute n of module model{SUSPECT}variable m")
    first = WayTaken(step=5, way=WayBack.IN_PLACE, outcome="differs", findings=(finding,))
    again = WayTaken(step=5, way=WayBack.SPARE, outcome="differs", findings=(finding,))
    assert list(first.lines()) == [
        "step 5  in-place    differs",
        "    rank 0: it differs",
        "        likely attribute n of module model",
        "        likely variable m",
    ]
    assert list(again.lines([first])) == ["step 5  spare       differs", "    as in-place at step 5"]


def test_what_was_not_written_down_is_not_the_same(tmp_path: Path) -> None:
    write(tmp_path, 1, "0.5", 0, 1)
    write(tmp_path, 2, "0.5", 0)
    events = [
        event("drilled", WayBack.NONE, generation=1),
        event("drill", WayBack.IN_PLACE, generation=1),
        event("drilled", WayBack.IN_PLACE, generation=2),
    ]
    (taken,) = ways_taken(tmp_path, events, 2)
    assert (taken.outcome, taken.findings[0].ranks) == ("differs", (1,))
    (nothing,) = ways_taken(tmp_path / "elsewhere", events, 2)
    assert nothing.outcome == "differs"
    assert "do all nodes see it?" in nothing.reason


def test_what_lies_beside_the_state_and_did_not_come_back_is_said_once() -> None:
    ways = [
        WayTaken(step=5, way=way, outcome="same", beside=(("variable best", (0, 1)), ("variable seen", ranks)))
        for way, ranks in ((WayBack.IN_PLACE, (1,)), (WayBack.SPARE, (0,)))
    ]
    assert list(ways[0].lines()) == [
        "step 5  in-place    same",
        "    not as it was, ranks 0, 1: variable best",
        "    not as it was, rank 1: variable seen",
    ]
    assert list(ways[1].lines(ways[:1])) == ["step 5  spare       same"]
