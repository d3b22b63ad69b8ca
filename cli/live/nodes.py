"""The nodes of a job in so many lines: with each rank where they fit, else a line a node, else a letter a node. Pure."""

from collections.abc import Sequence

from rich.text import Text

from deadpool.cli.live.marks import Glyphs, short, short_seconds
from deadpool.cli.live.standing import NodeStanding, Standing, counts, hot_text, own_s, slow_ranks, standings
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, NodeStatus, RankStatus
from deadpool.proto.vault.holdings import ranks_text

_WORST = 6  # nodes that are named above the grid
_WIDE = 118  # from here on with what the network does
_CELLS = (("role", -8), ("rank", 7), ("step", 7), ("own", 7), ("wait", 7), ("memory", 6), ("cpu", 4), ("gpu", 4), ("shm", 6))
_GPU_CELL = ("gpu", 7)  # with what of its memory is taken, where there is one
_WIDE_CELLS = (("sent", 9), ("received", 9), ("replicas", 9), ("heard", 6))
_NAME = 28  # of a node, at most; of a longer one the end is shown


def lines_wanted(status: JobStatus) -> int:
    """Returns how many lines there are where each rank has one, and all that is wrong is said in a line."""
    worries = sum(each.has_more_to_say for each in standings(status))
    rows = sum(max(1, len(node.ranks)) + bool(node.hot_ranks) + _is_keeper(node) for node in status.nodes)
    return 2 + worries + rows


def _is_keeper(node: NodeStatus) -> bool:
    """Returns whether that deserves a line: a node without ranks. Of those that train each keeps another one's."""
    return bool(node.keeps) and not node.ranks


def node_lines(status: JobStatus, *, width: int, height: int | None, glyphs: Glyphs) -> list[Text]:
    """Returns at most `height` lines (None: as many as it takes), each at most `width` characters wide."""
    found = standings(status)
    lines = _counted(found, width)
    left = None if height is None else height - len(lines) - 1
    by_index = sorted(found, key=lambda each: (each.standing is Standing.LOST, each.node.index))
    worries = sum(each.has_more_to_say for each in found)
    if height is None or left is None or lines_wanted(status) <= height:
        return lines + _table(status, by_index, width, each_rank=True)
    if len(found) + worries <= left:
        return lines + _table(status, by_index, width, each_rank=False)
    return lines + _grid(found, width, max(1, left + 1), glyphs)


def _counted(found: Sequence[NodeStanding], width: int) -> list[Text]:
    """Returns how many nodes stand how, in as many lines as it takes."""
    lines = [Text("nodes", style="bold")]
    for standing, count in counts(found):
        part = f"  {standing.letter} {count} {standing.said}"
        if lines[-1].cell_len + len(part) > width:
            lines.append(Text("     ", style="bold"))
        lines[-1].append(part, style=f"not bold {standing.colour}")
    return lines


# ------------------------------------------------------------ a line a rank, or a node


def _table(status: JobStatus, found: Sequence[NodeStanding], width: int, *, each_rank: bool) -> list[Text]:
    gpus = any(each.node.gpu_memory_share >= 0 for each in found)
    others = tuple(_GPU_CELL if gpus and cell[0] == "gpu" else cell for cell in _CELLS) + (_WIDE_CELLS if width >= _WIDE else ())
    room = width - sum(abs(size) + 1 for _, size in others)
    longest = max((len(each.node.node_id) for each in found), default=0)
    cells = (("node", -max(8, min(longest, room, _NAME))), *others)
    slow = slow_ranks(status)
    lines = [Text(_row([name for name, _ in cells], cells), style="dim")]
    for each in found:
        rows = _rank_cells(each.node.ranks) if each_rank else [_ranks_cells(each.node.ranks)]
        for number, row in enumerate(rows or [[""] * 5]):
            node, role, rest = ("", "", [""] * 7) if number else _node_cells(each.node)
            text = Text(_row([node, role, *row, *rest], cells), style=_style(each.standing, each_rank=each_rank))
            if each_rank and each.node.ranks and each.node.ranks[number].rank in slow:
                text.stylize(Standing.SLOW.colour)
            lines.append(text)
        if each_rank and each.node.hot_ranks:
            lines.append(Text(f"  hot for {hot_text(each.node)}", style="dim"))
        if each_rank and _is_keeper(each.node):
            lines.append(Text(f"  keeps the replicas of ranks {ranks_text(each.node.keeps)}", style="dim"))
        if each.has_more_to_say:
            lines.append(_worry(each))
    return lines


def _worry(each: NodeStanding, node: str = "") -> Text:
    return Text(f"  {each.standing.letter} {node}{each.why}", style=each.standing.colour)


def _style(standing: Standing, *, each_rank: bool) -> str:
    if standing is Standing.LOST:
        return "dim"
    only_a_rank = standing is Standing.SLOW and each_rank
    return standing.colour if standing < Standing.DRAINED and not only_a_rank else ""


def _row(values: Sequence[str], cells: Sequence[tuple[str, int]]) -> str:
    parts = []
    for value, (_, size) in zip(values, cells, strict=False):
        parts.append(value[size:].ljust(-size) if size < 0 else value.rjust(size))
    return " ".join(parts).rstrip()


def _node_cells(node: NodeStatus) -> tuple[str, str, list[str]]:
    if node.role == "lost":
        return node.node_id, node.role, [""] * 7
    shm = f"{short(node.shm_free_bytes, 'B')}"
    rates = [short(each, "B/s") for each in (node.sent_bytes_per_s, node.received_bytes_per_s, node.replicated_bytes_per_s)]
    return node.node_id, node.role, [f"{node.cpu_share:.0%}", _gpu(node), shm, *rates, f"{node.heartbeat_age_s:.1f} s"]


def _gpu(node: NodeStatus) -> str:
    """Returns how busy and how full the node's GPUs are: 98/74%."""
    if node.gpu_busy_share < 0:
        return "-"
    memory = f"/{100 * node.gpu_memory_share:.0f}" if node.gpu_memory_share >= 0 else ""
    return f"{100 * node.gpu_busy_share:.0f}{memory}%"


def _rank_cells(ranks: Sequence[RankStatus]) -> list[list[str]]:
    return [
        [str(each.rank), _step(each.step), *_times(each.step_s, own_s(each), each.wait_s), short(each.rss_bytes, "B")]
        for each in ranks
    ]


def _ranks_cells(ranks: Sequence[RankStatus]) -> list[str]:
    """Returns the cells for all ranks of a node: the step of the last one, the times of the slowest one."""
    if not ranks:
        return [""] * 5
    slowest = max(ranks, key=own_s)
    step = min(rank.step for rank in ranks)
    memory = short(sum(rank.rss_bytes for rank in ranks), "B")
    names = ranks_text(rank.rank for rank in ranks).replace(" ", "")
    return [names, _step(step), *_times(slowest.step_s, own_s(slowest), slowest.wait_s), memory]


def _times(step_s: float, own: float, wait_s: float) -> tuple[str, str]:
    """Returns (own, wait); where only the whole is known, that in the place of the first."""
    if step_s <= 0:
        return "-", "-"
    return (short_seconds(own), short_seconds(wait_s)) if wait_s >= 0 else (short_seconds(step_s), "-")


def _step(step: int) -> str:
    return "-" if step == NO_STEP else str(step)


# ------------------------------------------------------------ a letter a node


def _grid(found: Sequence[NodeStanding], width: int, height: int, glyphs: Glyphs) -> list[Text]:
    """Returns the worst nodes by name, then letters in order of their indices; each stands for so many nodes as it takes."""
    nodes = sorted(found, key=lambda each: each.node.index)
    label = len(str(nodes[-1].node.index)) + 1
    across = max(10, (width - label) // 10 * 10)
    named = max(0, min(_WORST, sum(bool(each.why) for each in found), height // 3))
    together = max(1, -(-len(nodes) // (across * max(1, height - named - 1))))
    lines = [
        Text(f"  {each.standing.letter} {each.node.node_id}: {each.why}", style=each.standing.colour) for each in found[:named]
    ]
    if together > 1:
        lines.append(Text(f"  each letter is the worst of {together} nodes", style="dim"))
    for begin in range(0, len(nodes), across * together):
        line = Text(f"{nodes[begin].node.index:>{label - 1}} ", style="dim")
        for first in range(begin, min(begin + across * together, len(nodes)), together):
            worst = min(each.standing for each in nodes[first : first + together])
            letter = glyphs.member if worst is Standing.MEMBER else worst.letter
            line.append(letter, style=f"not dim {worst.colour}")
        lines.append(line)
    return lines
