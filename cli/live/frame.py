"""What `deadpool status` shows: one status in, lines of text out, within so many columns and lines. Pure."""

from rich.text import Text

from deadpool.cli.live.marks import Glyphs, bar, clock_text, legend, phase_bar, short, short_seconds, sparkline
from deadpool.cli.live.nodes import lines_wanted, node_lines
from deadpool.cli.places import numbered, place
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, RecoveryRecord, SpentTimes

_LOST_KINDS = ("again", "stalled", "recovering", "waiting")
_NEWS_S = 20.0  # for so long a recovery is news
_RECOVERIES = 5
_LINES_OF_ONE = 3
_BAR = 40
_SPARKS = 30


def frame(status: JobStatus, *, width: int, height: int | None, glyphs: Glyphs) -> list[Text]:
    """Returns the lines; `height` None: as many as it takes. None is wider than `width`, but for the texts of causes."""
    lines = [_headline(status), *_news(status), _progress(status, width, glyphs), _rates(status, width, glyphs), _spent(status)]
    lines.append(_protection(status))
    if interval := interval_text(status):
        lines.append(Text(interval))
    if status.another_since_step != NO_STEP:
        lines.append(Text(another_run(status), style="bold yellow"))
    if status.unprotected:
        lines.append(Text(status.unprotected, style="bold red"))
    if said := spares_text(status):
        lines.append(Text(said, style="yellow"))
    if status.phase == "end":
        return [*lines, Text("the job ends")]
    most = _RECOVERIES if height is None else (height - len(lines) - lines_wanted(status) - 3) // _LINES_OF_ONE
    recoveries = _recoveries(status, width, most=max(1, most))
    left = None if height is None else max(3, height - len(lines) - len(recoveries) - 2)
    lines += [Text(""), *node_lines(status, width=width, height=left, glyphs=glyphs)]
    return lines + ([Text(""), *recoveries] if recoveries else [])


def one_line(status: JobStatus) -> str:
    """Returns the job in a line, for where nothing can be painted over."""
    parts = [
        _headline(status).plain,
        _step_text(status),
        f"{status.steps_per_s:.1f} steps/s",
        f"committed {_step(status.commit_step)}",
    ]
    return "  ".join(parts + [line.plain for line in _news(status)])


# ------------------------------------------------------------ the lines


def another_run(status: JobStatus) -> str:
    """Returns what there is to say of ranks that are, or were, excluded."""
    now = f"goes on without {numbered(status.excluded)}; " if status.excluded else ""
    return f"{now}not the unbroken run since step {status.another_since_step}: ranks were excluded"


def spares_text(status: JobStatus) -> str:
    """Returns that the spares are used up, "" while there is one or none was asked for."""
    none_left = status.spares > 0 and not any(node.role == "spare" for node in status.nodes)
    return f"no spare is left of {status.spares}" if none_left and status.phase not in ("assemble", "end") else ""


def _headline(status: JobStatus) -> Text:
    text = Text(f"{status.job_id}  ", style="bold")
    text.append(status.phase, style="bold yellow" if status.phase != "run" else "bold green")
    up = clock_text(status.spent_s.wall_s)
    text.append(f"  generation {status.generation}  {status.world_size} ranks  up {up}", style="not bold")
    if not status.hooked and status.phase != "assemble":
        text.append("  without hooks: restarted, not protected", style="not bold yellow")
    return text


def _news(status: JobStatus) -> list[Text]:
    """Returns what the job waits for, and a recovery that has just been, however short it was."""
    lines = [Text(f"waits for {status.waiting_for}", style="bold yellow")] if status.waiting_for else []
    if status.recoveries:
        last = status.recoveries[-1]
        ago_s = status.spent_s.wall_s - last.ended_s
        if 0 <= ago_s < _NEWS_S and last.ended_s > 0:
            what = "moved" if last.failure_class == "planned" else "recovered"
            exposed = f"; exposed for {short_seconds(last.exposed_s)}" if last.exposed_s >= 0 else ""
            text = f"{what} {ago_s:.0f} s ago in {short_seconds(last.total_s)}{exposed}: {last.cause}"
            lines.append(Text(text, style="bold cyan"))
    return lines


def _progress(status: JobStatus, width: int, glyphs: Glyphs) -> Text:
    text = Text(f"{_step_text(status)}  ")
    if status.until > 0 and status.step >= 0:
        share = status.step / status.until
        eta = clock_text((status.until - status.step) / status.steps_per_s) if status.steps_per_s > 0 else "-"
        tail = f"  {share:.1%}  ETA {eta}"
        text.append(bar(share, max(8, min(_BAR, width - len(text.plain) - len(tail))), glyphs), style="green")
        text.append(tail)
    return text


def _rates(status: JobStatus, width: int, glyphs: Glyphs) -> Text:
    """Returns how fast it goes, with the times of the last steps, and what the script has reported."""
    parts = [f"{status.steps_per_s:.1f} steps/s" if status.steps_per_s < 100 else f"{status.steps_per_s:.0f} steps/s"]
    if status.tokens_per_s > 0:
        parts.append(f"{short(status.tokens_per_s)} tokens/s")
    parts += [f"{each.name} {each.value:.4g}" for each in status.reported]
    text = Text("  ".join(parts))
    if status.step_times_s:
        now = f"  step {short_seconds(status.step_times_s[-1])} "
        room = width - len(text.plain) - len(now)
        text = text + Text(now)
        text.append(sparkline(status.step_times_s, min(_SPARKS, room), glyphs) if room >= 8 else "", style="cyan")
    return text


def _spent(status: JobStatus) -> Text:
    """Returns the goodput, and where the rest of the time has gone."""
    members = sum(node.role == "member" for node in status.nodes)
    more = members < sum(node.role != "lost" for node in status.nodes)
    return Text(spent_text(status.spent_s, charged=status.spent_s.charged(members) if more else None))


def spent_text(spent: SpentTimes, *, charged: float | None) -> str:
    """Returns the goodput, and what the rest of the time went into. `charged`: the same with spares paid, where there are any."""
    parts = [f"{name} {getattr(spent, name):.1f} s" for name in _LOST_KINDS if getattr(spent, name) >= 0.05]
    paid = f" ({charged:.1%} with spares paid)" if charged is not None else ""
    return f"goodput {spent.goodput:.1%}{paid} of {clock_text(spent.wall_s - spent.assembling)}" + (
        f": {', '.join(parts)}" if parts else ""
    )


def interval_text(status: JobStatus) -> str:
    """Returns how often a state is committed where that is not after every step, and what it means; "" else."""
    if status.snapshot_every <= 1:
        return ""
    step_s = max((rank.step_s for node in status.nodes for rank in node.ranks), default=0.0)
    figures = f": copy {status.snapshot_s:.2g} s, step {step_s:.2g} s" if status.snapshot_s > 0 and step_s > 0 else ""
    return f"commits every {status.snapshot_every} steps{figures}; a failure repeats {status.steps_at_risk} steps at most"


def _protection(status: JobStatus) -> Text:
    if not status.hooked:
        return Text("not protected: the script has not called deadpool.join()" if status.phase == "run" else "")
    replicas = "no replicas" if status.replicas == 0 else f"{status.replicas} replica{'' if status.replicas == 1 else 's'}"
    if status.domains_lost_max:
        some = "any domain" if status.domains_lost_max == 1 else f"any {status.domains_lost_max} domains"
        replicas += f" ({some} may be lost)"
    rate = sum(node.replicated_bytes_per_s for node in status.nodes)
    sent = sum(node.sent_bytes_per_s for node in status.nodes)
    parts = [
        f"committed {_step(status.commit_step)}",
        f"{replicas}, {short(rate, 'B/s')}",
        f"network {short(sent, 'B/s')}",
        f"exposed stall {status.exposed_stall_s:.3f} s",
    ]
    if status.checkpoint_step != NO_STEP:
        parts.append(f"checkpoint {status.checkpoint_step}")
    return Text("  ".join(parts))


def _recoveries(status: JobStatus, width: int, *, most: int) -> list[Text]:
    if not status.recoveries:
        return []
    shown = status.recoveries[-min(most, _RECOVERIES) :]
    longest_s = max(each.total_s for each in shown)
    bars = [phase_bar(each.phases_s, _bar_size(each, longest_s, width)) for each in shown]
    lines = [Text(f"recoveries  {len(status.recoveries)}  ", style="bold")]
    lines[0].append(legend(bars), style="not bold dim")
    for each, drawn in zip(reversed(shown), reversed(bars), strict=True):
        ago = f"{clock_text(status.spent_s.wall_s - each.ended_s)} ago  " if each.ended_s > 0 else ""
        lines.append(Text(f"g{each.generation}  {ago}{each.failure_class}: {each.cause}"))
        lines.append(Text(f"    {_became(each)}"))
        line = Text(f"    {short_seconds(each.total_s):>8}  ")
        for letters, colour in drawn:
            line.append(letters, style=colour)
        lines.append(line)
    return lines


def _bar_size(record: RecoveryRecord, longest_s: float, width: int) -> int:
    return max(1, round(min(_BAR, width - 16) * record.total_s / longest_s)) if longest_s > 0 else 1


def _became(record: RecoveryRecord) -> str:
    from_scratch = record.resume_step == NO_STEP
    went = f"{place(record.spare, record.moved, record.ranks, record.excluded)}, " if record.spare or not from_scratch else ""
    back = f"resumed at step {record.resume_step}, {record.steps_reexecuted} again"
    return went + ("all ranks restarted" if from_scratch else back)


def _step_text(status: JobStatus) -> str:
    return f"step {_step(status.step)}" + (f" of {status.until}" if status.until > 0 else "")


def _step(step: int) -> str:
    return "-" if step == NO_STEP else str(step)
