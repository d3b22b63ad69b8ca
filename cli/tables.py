"""What `deadpool status` and `deadpool events` show a person, and the same as JSON."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deadpool.proto.convert import to_plain
from deadpool.proto.messages import NO_STEP, JobStatus, NodeStatus, RecoveryRecord

_RECOVERIES_SHOWN = 5
_PHASES = ("detect", "decide", "quiesce", "plan", "reform", "restore", "first_step")


def as_json(status: JobStatus) -> dict[str, Any]:
    """Returns the status as `--json` and the summary file spell it: a recovery's class is "class"."""
    plain: dict[str, Any] = to_plain(status)
    plain["recoveries"] = [
        {("class" if key == "failure_class" else key): value for key, value in each.items()} for each in plain["recoveries"]
    ]
    return plain


def status_view(status: JobStatus) -> RenderableType:
    parts: list[RenderableType] = [_headline(status), _nodes(status)]
    if status.recoveries:
        parts.append(_recoveries(status.recoveries[-_RECOVERIES_SHOWN:]))
    return Group(*parts)


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
        f"  {status.steps_per_s:.1f} steps/s  {status.world_size} ranks  exposed stall {status.exposed_stall_s:.3f} s"
        + ("" if status.hooked else "  without hooks: restarted, not protected"),
        style="not bold",
    )
    return text


def _nodes(status: JobStatus) -> Table:
    table = Table("node", "role", "ranks (pid, step)", "last beat", "cpu", "memory", "shm free", "stand-ins")
    for node in sorted(status.nodes, key=lambda node: (node.role == "lost", node.index)):
        table.add_row(*_node_row(node), style="dim" if node.role == "lost" else None)
    return table


def _node_row(node: NodeStatus) -> tuple[str, ...]:
    ranks = ", ".join(f"{rank.rank} ({rank.pid}, {_step(rank.step)})" for rank in node.ranks)
    if node.role == "lost":
        return (node.node_id, node.role, ranks, *[""] * 5)
    return (
        node.node_id, node.role, ranks, f"{node.beat_age_s:.1f} s ago", f"{node.cpu_share:.0%}", f"{node.memory_share:.0%}",
        f"{node.shm_free_bytes / (1 << 30):.1f} GiB", str(node.standins_ready),
    )  # fmt: skip


def _recoveries(recoveries: tuple[RecoveryRecord, ...]) -> Table:
    table = Table("g", "cause", "class", "node", "ranks", "spare", "resumed at", "again", *_PHASES, "total", title="recoveries")
    for each in recoveries:
        phases = [f"{getattr(each.phases_s, phase):.3f}" for phase in _PHASES]
        table.add_row(
            str(each.generation), each.cause, each.failure_class, each.node, " ".join(map(str, each.ranks)), each.spare,
            _step(each.resume_step), str(each.steps_reexecuted), *phases, f"{each.total_s:.3f} s",
        )  # fmt: skip
    return table


def _step(step: int) -> str:
    return "-" if step == NO_STEP else str(step)
