"""What `deadpool status` and `deadpool events` show a person, and the same as JSON."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from deadpool.cli.commands.ended import EndedJob
from deadpool.cli.doctor.checks import Finding, Level, hot_text
from deadpool.cli.holdings import NOT_YET, JobHoldings
from deadpool.cli.launcher.console import describe
from deadpool.cli.places import place
from deadpool.host.sizes import size_text
from deadpool.proto.convert import to_plain
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, NodeStatus, RecoveryRecord
from deadpool.proto.vault.holdings import ranks_text

_RECOVERIES_SHOWN = 5
_WIDE = 240
_PHASES = ("detect", "decide", "quiesce", "plan", "reform", "restore", "first_step")


def as_json(status: JobStatus) -> dict[str, Any]:
    """Returns the status as `--json` and the summary file spell it: a recovery's class is "class"."""
    plain: dict[str, Any] = to_plain(status)
    plain["recoveries"] = [
        {("class" if key == "failure_class" else key): value for key, value in each.items()} for each in plain["recoveries"]
    ]
    return plain


def status_view(status: JobStatus) -> RenderableType:
    over = status.phase == "end"  # its nodes leave, which says nothing
    parts: list[RenderableType] = [_headline(status), _spent(status), Text("the job ends") if over else _nodes(status)]
    warnings = [status.unprotected] if status.unprotected else []
    warnings += [f"{node.node_id}: {trouble}" for node in status.nodes for trouble in node.troubles]
    parts[2:2] = [Text(warning, style="bold red") for warning in warnings]
    if status.recoveries:
        parts.append(_recoveries(status.recoveries[-_RECOVERIES_SHOWN:]))
    return Group(*parts)


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
    return Group(table, *silent)


def ended_view(job: EndedJob) -> RenderableType:
    """Returns how a job that is over has ended, with its recoveries."""
    text = Text(f"{job.job_id}  ", style="bold")
    good = job.exit_code == 0
    code = "" if job.exit_code is None else f" (exit code {job.exit_code})"
    text.append("ended: ", style="green" if good else "bold red")
    text.append(f"{job.reason}{code}", style="not bold" if good else "bold red")
    when = f"{job.ended[:19].replace('T', ' ')} UTC, after {job.duration_s:.0f} s" if job.ended else "no event was written"
    parts: list[RenderableType] = [text, Text(f"{when}, generation {job.generation}; logs in {job.log_dir}")]
    if job.recoveries:
        table = Table("g", "recovery", "total", box=box.SIMPLE_HEAD)
        for event in job.recoveries[-_RECOVERIES_SHOWN:]:
            what = f"{event.get('failure_class', '?')}: {event.get('cause', '?')}\n{describe(event)}"
            table.add_row(str(event.get("generation", "?")), what, f"{event.get('total_s', 0.0):.3f} s")
        parts.append(table)
    return Group(*parts)


def widen(console: Console) -> None:
    """What is no terminal has no width: a row is one line there, for grep."""
    if not console.is_terminal:
        console.width = _WIDE


def findings_view(findings: Sequence[Finding]) -> Table:
    """Returns what the doctor has found, a row each."""
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
    rest = {key: value for key, value in event.items() if key not in ("time", "event", "generation", "caused_by")}
    text = Text(f"{event.get('time', '')}  g{event.get('generation', '?')}  ")
    text.append(str(event.get("event", "?")), style="bold")
    return text.append("  " + "  ".join(f"{key}={value}" for key, value in rest.items()) if rest else "")


def _headline(status: JobStatus) -> Text:
    text = Text(f"{status.job_id}  ", style="bold")
    text.append(status.phase, style="yellow" if status.phase == "recover" else "green")
    text.append(
        f"  generation {status.generation}  step {_step(status.step)} (committed {_step(status.commit_step)})"
        + (f"  checkpoint {status.checkpoint_step}" if status.checkpoint_step != NO_STEP else "")
        + f"  {status.steps_per_s:.1f} steps/s  {status.world_size} ranks  exposed stall {status.exposed_stall_s:.3f} s"
        + ("" if status.hooked else "  without hooks: restarted, not protected"),
        style="not bold",
    )
    return text


def _spent(status: JobStatus) -> Text:
    """Returns the goodput, and where the rest of the time has gone."""
    spent = status.spent_s
    members = sum(node.role == "member" for node in status.nodes)
    lost = ("again", "stalled", "recovering", "waiting")
    parts = [f"{name} {getattr(spent, name):.1f} s" for name in lost if getattr(spent, name) >= 0.05]
    charged = f" ({spent.charged(members):.1%} with spares paid)" if members < sum(n.role != "lost" for n in status.nodes) else ""
    return Text(f"goodput {spent.goodput:.1%}{charged} of {spent.wall_s:.0f} s" + (f": {', '.join(parts)}" if parts else ""))


def _nodes(status: JobStatus) -> Table:
    table = Table("node", "role", box=box.SIMPLE_HEAD)
    for name in ("rank", "pid", "step", "heartbeat", "cpu", "memory", "shm free", "warm"):
        table.add_column(name, justify="right")
    for node in sorted(status.nodes, key=lambda node: (node.role == "lost", node.index)):
        table.add_row(*_node_row(node), style="dim" if node.role == "lost" else None)
    return table


def _node_row(node: NodeStatus) -> tuple[str, ...]:
    """Returns the node's cells; those of its ranks have a line for each."""
    ranks = ["\n".join(each) for each in zip(*[(str(r.rank), str(r.pid), _step(r.step)) for r in node.ranks], strict=True)]
    role = f"{node.role}, hot for {hot_text(node)}" if node.hot_ranks else node.role
    cells = (node.node_id, role, *(ranks or [""] * 3))
    if node.role == "lost":
        return cells
    return (
        *cells, f"{node.heartbeat_age_s:.1f} s", f"{node.cpu_share:.0%}", f"{node.memory_share:.0%}",
        f"{node.shm_free_bytes / (1 << 30):.1f} GiB", str(node.standins_ready),
    )  # fmt: skip


def _recoveries(recoveries: tuple[RecoveryRecord, ...]) -> Table:
    table = Table("g", "recovery", "total", box=box.SIMPLE_HEAD)
    for each in recoveries:
        from_scratch = each.resume_step == NO_STEP
        went = f"{place(each.spare, each.moved, each.ranks)}, " if each.spare or not from_scratch else ""
        phases = "  ".join(f"{phase}\N{NO-BREAK SPACE}{getattr(each.phases_s, phase):.3f}" for phase in _PHASES)
        resumed = "all ranks restarted" if from_scratch else f"resumed at step {each.resume_step}, {each.steps_reexecuted} again"
        what = f"{each.failure_class}: {each.cause}\n{went}{resumed}"
        table.add_row(str(each.generation), f"{what}\n{phases}", f"{each.total_s:.3f} s")
    return table


def _step(step: int) -> str:
    return "-" if step == NO_STEP else str(step)
