"""Who waits for whom: the ranks' call records and stacks, for a person to read. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.proto.messages import GroupCall, RankCalls
from deadpool.proto.messages.status import Diagnosis
from deadpool.proto.vault.holdings import ranks_text

_FRAMES = 5  # of a stack, the newest and the oldest ones
_NODES = 8
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWaits:
    """One group's newest call. `inside`: the ranks that are in it; `absent`: the members that have not come to it.

    `before`: those of them that are in an earlier call: of a job that gets on, ranks are asked at different moments.
    """

    group: str
    call: int
    operation: str
    inside: tuple[int, ...]
    absent: tuple[int, ...]
    before: tuple[int, ...] = ()


def group_waits(ranks: Sequence[RankCalls]) -> list[GroupWaits]:
    """Returns the groups in which somebody waits, those first that have a rank which has not come."""
    groups: dict[str, dict[int, GroupCall]] = defaultdict(dict)
    for each in ranks:
        for call in each.groups:
            groups[call.group][each.rank] = call
    found = []
    for name, members in groups.items():
        inside = {rank: call for rank, call in members.items() if call.entered > call.completed}
        if inside:
            number = max(call.entered for call in inside.values())
            operation = next(call.operation for call in inside.values() if call.entered == number)
            newest = tuple(sorted(rank for rank, call in inside.items() if call.entered == number))
            absent = tuple(sorted(rank for rank, call in members.items() if call.entered < number))
            before = tuple(rank for rank in absent if rank in inside)
            found.append(GroupWaits(group=name, call=number, operation=operation, inside=newest, absent=absent, before=before))
    return sorted(found, key=lambda each: (not each.absent, each.group))


def diagnosis_lines(
    diagnosis: Diagnosis, nodes: Mapping[int, str], stacks: Mapping[int, str], *, moved: tuple[int, int]
) -> list[str]:
    """`nodes`: rank -> its node. `stacks`: rank -> what faulthandler has written. `moved`: the job's step before and after."""
    before, after = moved
    lines = []
    if after > before:
        lines.append(f"the job gets on (step {before} to {after} while this was asked): nobody is waited for long")
    lines += [f"{node} has not answered" for node in diagnosis.missing]
    if after <= before:
        lines.append(diagnosis.why or "no rank waits in a call")
    waits = group_waits(diagnosis.ranks)
    for each in waits:
        lines.append(f"group {each.group}: call {each.call} ({each.operation})")
        lines.append(f"  waiting in it   {_ranks(each.inside, nodes)}")
        if each.absent:
            lines.append(f"  not there yet   {_ranks(each.absent, nodes)}")
        if each.before:
            lines.append(f"    of these in an earlier call of it: {_ranks(each.before, nodes)}")
    waiting = {rank for each in waits for rank in (*each.inside, *each.before)}
    working = [each.rank for each in diagnosis.ranks if each.rank not in waiting and not each.stopped]
    stopped = [each.rank for each in diagnosis.ranks if each.stopped]
    lines += [f"in no call: {_ranks(working, nodes)}"] if working else []
    lines += [f"stopped by a signal or a debugger: {_ranks(stopped, nodes)}"] if stopped else []
    return lines + stack_lines(stacks)


def _ranks(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    ranks = list(ranks)
    where = sorted({nodes[rank] for rank in ranks if rank in nodes})
    shown = ", ".join(where[:_NODES]) + (f" and {len(where) - _NODES} more nodes" if len(where) > _NODES else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)} on {shown}"


# ------------------------------------------------------------ stacks


def stack_lines(stacks: Mapping[int, str]) -> list[str]:
    """Returns the stack of each main thread; ranks that are at the same place are named together."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank, text in sorted(stacks.items()):
        places[main_thread(text)].append(rank)
    lines = []
    for frames, ranks in sorted(places.items(), key=lambda place: (len(place[1]), place[1])):
        lines.append(f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}, the newest call first:")
        lines += [f"  {frame}" for frame in frames] or ["  no Python stack"]
    return lines


def main_thread(text: str) -> tuple[str, ...]:
    """Returns frames of the thread that runs the script, the newest first."""
    found = filter(None, map(_FRAME.match, text.splitlines()))
    frames = [f"{match['function']} ({match['file']}:{match['line']})" for match in found]
    if len(frames) > 2 * _FRAMES:
        frames = [*frames[:_FRAMES], f"... {len(frames) - 2 * _FRAMES} more", *frames[-_FRAMES:]]
    return tuple(frames)


# ------------------------------------------------------------ a job that has ended


def past_lines(events: Iterable[dict[str, Any]]) -> list[str]:
    """Returns who was waited for, and what each failure was taken for, as the events of a job tell it."""
    lines = []
    for event in events:
        at = f"{str(event.get('time', ''))[11:19]}  g{event.get('generation', '?')}  "
        match event.get("event"):
            case "hang":
                lines.append(
                    f"{at}no step for {event.get('stalled_s', '?')} s: {event.get('reason') or 'nobody waits in a call'}"
                )
                lines += [f"    stacks: {path}" for path in event.get("stacks", ())]
            case "collective_failed":
                lines.append(f"{at}rank {event.get('rank')} on {event.get('node')}: a collective failed: {event.get('error')}")
            case "diagnosis":
                reason = f"{event.get('failure_class')} by rule {event.get('rule')}: {event.get('reason')}"
                lines.append(f"{at}{event.get('cause')}: {reason}")
            case "failure":
                lines.append(f"{at}recovered from: {event.get('cause')} ({event.get('failure_class')})")
            case "job_ended":
                lines.append(f"{at}ended with exit code {event.get('exit_code')}: {event.get('reason')}")
                lines += [f"    {event['error']}"] if event.get("error") else []
    return lines or ["its events tell of no failure and no end"]
