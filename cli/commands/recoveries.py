"""The recoveries of a job out of its events, while it runs and after its end. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from deadpool.cli.launcher.console import describe
from deadpool.cli.live.marks import PHASES, legend, phase_bar
from deadpool.proto.messages.status import PhaseTimes

_KINDS = ("recovered", "restarted")
_BAR = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRecovery:
    """`ended`: ISO time; `ended_s`: since the job's first event. `phases_s` sums to `total_s`; of an older log it is all 0."""

    kind: str
    ended: str
    ended_s: float
    generation: int
    cause: str
    failure_class: str
    ranks: tuple[int, ...]
    spare: str
    resume_step: int
    steps_reexecuted: int
    phases_s: PhaseTimes
    total_s: float
    became: str


def past_recoveries(events: Iterable[dict[str, Any]]) -> list[PastRecovery]:
    """Returns one for each event that ends a recovery; a field that an older log lacks is empty."""
    found, began = [], None
    for event in events:
        at = datetime.fromisoformat(event["time"]) if "time" in event else None
        began = began or at
        if event.get("event") in _KINDS:
            ended_s = (at - began).total_seconds() if at is not None and began is not None else 0.0
            found.append(_recovery(event, ended_s))
    return found


def _recovery(event: dict[str, Any], ended_s: float) -> PastRecovery:
    phases = {name: float(value) for name, value in event.get("phases_s", {}).items() if name in PHASES}
    return PastRecovery(
        kind=event["event"],
        ended=str(event.get("time", "")),
        ended_s=ended_s,
        generation=int(event.get("generation", 0)),
        cause=str(event.get("cause", "?")),
        failure_class=str(event.get("failure_class", "?")),
        ranks=tuple(event.get("ranks", ())),
        spare=str(event.get("spare", "")),
        resume_step=int(event.get("resume_step", -1)),
        steps_reexecuted=int(event.get("steps_reexecuted", 0)),
        phases_s=PhaseTimes(**phases),
        total_s=float(event.get("total_s", 0.0)),
        became=describe(event),
    )


def recoveries_json(found: Sequence[PastRecovery]) -> list[dict[str, Any]]:
    """Returns them for programs; the class is "class", as in status and summary."""
    return [{("class" if key == "failure_class" else key): value for key, value in asdict(each).items()} for each in found]


def recoveries_table(found: Sequence[PastRecovery]) -> Table:
    longest_s = max((each.total_s for each in found), default=0.0)
    sizes = [max(1, round(_BAR * each.total_s / longest_s)) if longest_s > 0 else 1 for each in found]
    bars = [phase_bar(each.phases_s, size) for each, size in zip(found, sizes, strict=True)]
    table = Table(box=box.SIMPLE_HEAD, caption=legend(bars), caption_justify="left")
    table.add_column("g", justify="right")
    table.add_column("ended")
    table.add_column("total", justify="right")
    table.add_column("recovery", overflow="fold")
    for each, drawn in zip(found, bars, strict=True):
        bar = Text()
        for letters, colour in drawn:
            bar.append(letters, style=colour)
        said = Text(f"{each.failure_class}: {each.cause}\n{each.became}\n").append_text(bar)
        table.add_row(str(each.generation), each.ended[11:19], f"{each.total_s:.3f} s", said)
    return table
