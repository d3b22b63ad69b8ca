"""The report of a drill: from the job's events and from what its ranks have written down, for each boundary and each way back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deadpool.proto.drill import FOLDER, WayBack
from deadpool.trainer_hooks.drill.held_open import shared_by_joiners
from deadpool.trainer_hooks.drill.tables import Table, table_path
from deadpool.trainer_hooks.drill.verdict import SUSPECT, AttemptTables, Divergence, beside, findings

SAME, DIFFERS, FAILED, LEFT_OUT = "same", "differs", "failed", "left out"


@dataclass(frozen=True, slots=True, kw_only=True)
class WayTaken:
    """`outcome`: same, differs, failed (the job did not come back) or left out (it cannot). `reason`: of the last two.

    `beside`: where it is the same, what was compared by nothing and did not come back (verdict.beside), with its ranks.
    """

    step: int
    way: WayBack
    outcome: str
    findings: tuple[Divergence, ...] = ()
    reason: str = ""
    beside: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def lines(self, earlier: Sequence["WayTaken"] = ()) -> Iterator[str]:
        """Yields what a person reads of it; what one of the `earlier` has found as well is not said again."""
        head = f"step {self.step}  {self.way.value:<10}  {self.outcome}"
        yield f"{head}: {self.reason}" if self.reason else head
        yield from (f"    not as it was, {_ranks(ranks)}: {name}" for name, ranks in self.beside if not _said(name, earlier))
        like = next((way for way in earlier if self.findings and way.findings == self.findings), None)
        if like is not None:
            yield f"    as {like.way.value} at step {like.step}"
            return
        for finding in self.findings:
            cause, *suspects = finding.cause.split(SUSPECT)
            yield f"    {_ranks(finding.ranks)}: {cause}"
            yield from (f"        likely {suspect}" for suspect in suspects)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _said(name: str, earlier: Sequence[WayTaken]) -> bool:
    return any(name == other for way in earlier for other, _ in way.beside)


def ways_taken(log_dir: Path, events: Sequence[dict[str, Any]], world_size: int) -> list[WayTaken]:
    """Returns every way back that was taken, or left out, in order. Unreadable tables count as not written."""
    generations: dict[tuple[int, WayBack], int] = {}
    begun: list[tuple[int, WayBack]] = []
    not_taken: dict[tuple[int, WayBack], tuple[str, str]] = {}  # outcome, reason
    end = "the job ended before all ranks had done the step again"
    for event in events:
        match event["event"]:
            case "drill":
                begun.append((event["step"], WayBack(event["way"])))
            case "drilled":
                generations[event["step"], WayBack(event["way"])] = event["generation"]
            case "drill_left_out" | "drill_failed":
                key = event["step"], WayBack(event["way"])
                not_taken[key] = LEFT_OUT if event["event"] == "drill_left_out" else FAILED, event["reason"]
                begun.append(key)
            case "job_ended" if event["exit_code"]:
                end = event["reason"]
    taken = []
    for step, way in begun:
        if (step, way) in not_taken:
            outcome, reason = not_taken[step, way]
            taken.append(WayTaken(step=step, way=way, outcome=outcome, reason=reason))
        elif (step, way) not in generations:
            taken.append(WayTaken(step=step, way=way, outcome=FAILED, reason=end))
        else:
            first = _attempts(log_dir / FOLDER, step, generations[step, WayBack.NONE], world_size)
            again = _attempts(log_dir / FOLDER, step, generations[step, way], world_size)
            found = tuple(findings(first, again))
            missing = not first
            outcome = DIFFERS if found or missing else SAME
            reason = f"nothing is written down in {log_dir / FOLDER}: do all nodes see it?" if missing else ""
            left = tuple(beside(first, again)) if outcome == SAME else ()
            taken.append(WayTaken(step=step, way=way, outcome=outcome, findings=found, reason=reason, beside=left))
    return taken


def shared_when_hot(log_dir: Path, events: Sequence[dict[str, Any]], world_size: int) -> tuple[bool, list[str]]:
    """Returns (whether a joiner was looked at, "rank R writes PATH" or "listens on ADDRESS" where its living rank does)."""
    living: dict[int, int] = {}
    joining: dict[int, int] = {}
    for event in events:
        if event["event"] == "drilled" and WayBack(event["way"]) is WayBack.NONE:
            living[event["step"]] = event["generation"]
        elif event["event"] == "drilled" and WayBack(event["way"]) in (WayBack.PROCESS, WayBack.SPARE):
            joining[event["generation"]] = living[event["step"]]
    return shared_by_joiners(log_dir, joining, world_size)


def _attempts(folder: Path, step: int, generation: int, world_size: int) -> dict[int, AttemptTables]:
    found = {}
    for rank in range(world_size):
        before, after = (
            _read(table_path(folder, step=step, generation=generation, rank=rank, when=when)) for when in ("before", "after")
        )
        if before is not None and after is not None:
            found[rank] = AttemptTables(before=before, after=after)
    return found


def _read(path: Path) -> Table | None:
    try:
        return Table.from_json(path.read_text())
    except (OSError, ValueError, TypeError):
        return None
