"""What `deadpool status` and `deadpool events` show a person, and the same as JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deadpool.cli.commands.ended import EndedJob
from deadpool.cli.holdings import NOT_YET, JobHoldings
from deadpool.cli.launcher.console import describe
from deadpool.cli.live.frame import frame, spent_text
from deadpool.cli.live.marks import glyphs_for
from deadpool.cli.live.nodes import lines_wanted
from deadpool.host.sizes import size_text
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, SpentTimes
from deadpool.proto.vault.holdings import ranks_text

if TYPE_CHECKING:
    from deadpool.cli.doctor.checks import Finding

_RECOVERIES_SHOWN = 5
_WIDE = 240
_LINES = 60


def show_status(status: JobStatus, console: Console) -> None:
    """Prints all that there is to say of the job; on a terminal a letter a node where a line for each rank would fill pages."""
    height = _LINES if console.is_terminal and lines_wanted(status) > _LINES else None
    lines = frame(status, width=console.width, height=height, glyphs=glyphs_for(console.encoding))
    if console.is_terminal:
        console.print(Group(*lines))
    else:  # of a thousand nodes thousands of lines: that none of them has to be broken need not be found out
        console.file.write("".join(f"{line.plain}\n" for line in lines))


def holdings_view(held: JobHoldings) -> RenderableType:
    """Returns what is unique in the state, and where its copies are."""
    silent = [Text(f"its vault does not answer: {each}", style="bold red") for each in held.silent]
    if held.step == NO_STEP:
        return Group(Text(NOT_YET), *silent)
    table = Table(f"state at step {held.step}", box=box.SIMPLE_HEAD)
    for name in ("items", "bytes"):
        table.add_column(name, justify="right")
    for name in ("held by", "on", "replicas on"):
        table.add_column(name, overflow="fold")
    for each in held.groups:
        ranks = f"{'rank' if len(each.ranks) == 1 else 'ranks'} {ranks_text(each.ranks)}"
        alone = "" if each.same else ": unique" if len(each.ranks) == 1 else ": each its own"
        replicas = "" if each.same else ", ".join(each.replicas) or "none"
        cells = (each.group, str(each.items), size_text(each.size_bytes), f"{ranks}{alone}", ", ".join(each.nodes), replicas)
        table.add_row(*cells)
    if held.missing:
        silent.append(Text(f"not seen, for it was being written: rank {ranks_text(held.missing)}", style="yellow"))
    return Group(table, *silent)


def ended_view(job: EndedJob) -> RenderableType:
    """Returns how a job that is over has ended, with its recoveries."""
    text = Text(f"{job.job_id}  ", style="bold")
    good = job.exit_code == 0
    code = "" if job.exit_code is None else f" (exit code {job.exit_code})"
    text.append("ended: ", style="green" if good else "bold red")
    text.append(f"{job.reason}{code}", style="not bold" if good else "bold red")
    when = f"{job.ended[:19].replace('T', ' ')} UTC, after {job.duration_s:.0f} s" if job.ended else "no event was written"
    parts: list[RenderableType] = [text, *([Text(f"  {job.error}", style="red")] if job.error else [])]
    parts.append(Text(f"{when}, generation {job.generation}; logs in {job.log_dir}"))
    if job.summary:
        parts += [Text(line) for line in _how_far(job.summary)]
    if job.recoveries:
        table = Table("g", "recovery", "total", box=box.SIMPLE_HEAD)
        for event in job.recoveries[-_RECOVERIES_SHOWN:]:
            what = f"{event.get('failure_class', '?')}: {event.get('cause', '?')}\n{describe(event)}"
            table.add_row(str(event.get("generation", "?")), what, f"{event.get('total_s', 0.0):.3f} s")
        parts.append(table)
    return Group(*parts)


def _how_far(summary: dict[str, Any]) -> list[str]:
    """Returns the steps and the goodput of a job that is over, and where the rest of its time has gone."""
    spent = SpentTimes(**summary["spent_s"])
    of = f" of {summary['until']}" if summary.get("until") else ""
    committed = f", committed {summary['commit_step']}" if summary.get("commit_step", NO_STEP) != NO_STEP else ""
    reported = "".join(f"  {name} {value:.4g}" for name, value in summary.get("reported", {}).items())
    charged = summary.get("goodput_spares_charged", 0.0)
    lines = [f"{summary['steps']} steps{of}{committed}{reported}", spent_text(spent, charged=charged)]
    if (since := summary.get("another_since_step")) is not None:
        lines.append(f"not the unbroken run since step {since}: ranks were excluded")
    return lines


def widen(console: Console) -> None:
    """What is no terminal has no width: a row is one line there, for grep."""
    if not console.is_terminal:
        console.width = _WIDE


def _says_nothing(key: str, value: object) -> bool:
    return value in ("", [], None) or (key.endswith("step") and value == NO_STEP)


def _said(value: object) -> object:
    """Returns the value with as many digits as a person reads."""
    match value:
        case float():
            return f"{value:.4g}"
        case dict():
            return ", ".join(f"{key} {_said(each)}" for key, each in value.items())
        case list():
            return ", ".join(str(_said(each)) for each in value)
        case _:
            return value


def findings_view(findings: Sequence["Finding"]) -> Table:
    """Returns what the doctor has found, a row each."""
    from deadpool.cli.doctor.checks import Level  # only the doctor pays for it

    colours = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "bold red"}
    table = Table("", "check", box=box.SIMPLE_HEAD)
    if any(each.node for each in findings):
        table.add_column("node", overflow="fold")
    table.add_column("found", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for each in findings:
        node = [each.node] if any(every.node for every in findings) else []
        table.add_row(Text(each.level, style=colours[each.level]), each.check, *node, each.found, each.advice)
    return table


def event_line(event: dict[str, Any]) -> Text:
    """Returns one event as a line: time, generation, name, and what else it says."""
    apart = ("time", "event", "generation", "caused_by", "version")
    rest = {key: _said(value) for key, value in event.items() if key not in apart and not _says_nothing(key, value)}
    text = Text(f"{event.get('time', '')}  g{event.get('generation', '?')}  ")
    text.append(str(event.get("event", "?")), style="bold")
    return text.append("  " + "  ".join(f"{key}={value}" for key, value in rest.items()) if rest else "")
