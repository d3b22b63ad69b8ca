"""Small pictures and short numbers for a terminal. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from deadpool.proto.messages.status import PhaseTimes

PHASES = {
    "detect": ("D", "magenta"), "decide": ("C", "white"), "quiesce": ("Q", "yellow"), "plan": ("P", "white"),
    "reform": ("G", "cyan"), "restore": ("R", "blue"), "first_step": ("F", "green"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """What pictures are made of. `levels`: from low to high."""

    levels: str
    full: str
    empty: str
    member: str


UNICODE = Glyphs(levels="▁▂▃▄▅▆▇█", full="█", empty="░", member="·")
ASCII = Glyphs(levels="_.-~=+*#", full="#", empty=".", member=".")


def glyphs_for(encoding: str) -> Glyphs:
    """Returns those that a terminal of this encoding can show."""
    return UNICODE if encoding.lower().startswith("utf") else ASCII


def sparkline(values: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """Returns the last `width` values as heights between nothing and the largest; "" of none."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return ""
    last = len(glyphs.levels) - 1
    return "".join(glyphs.levels[round(last * max(0.0, value) / top)] for value in shown)


def bar(share: float, width: int, glyphs: Glyphs) -> str:
    """Returns a bar of which this share is full."""
    full = round(max(0.0, min(1.0, share)) * width)
    return glyphs.full * full + glyphs.empty * (width - full)


def phase_bar(phases_s: PhaseTimes, width: int) -> list[tuple[str, str]]:
    """Returns (letters, colour) of each phase in its order; together `width` letters, those of a phase as many as its share.

    A phase of less than half a letter is left out.
    """
    total_s = sum(getattr(phases_s, phase) for phase in PHASES)
    if total_s <= 0:
        return []
    parts, at_s, at = [], 0.0, 0
    for phase, (letter, colour) in PHASES.items():
        at_s += getattr(phases_s, phase)
        end = round(width * at_s / total_s)
        if end > at:
            parts.append((letter * (end - at), colour))
        at = end
    return parts


def legend(bars: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Returns what the letters in these phase bars stand for."""
    drawn = {letters[0] for bar in bars for letters, _ in bar}
    said = [f"{letter} {phase}" for phase, (letter, _) in PHASES.items() if letter in drawn]
    return "  ".join(said).replace("_", " ")


def clock_text(seconds: float) -> str:
    """Returns a length of time as people write it: 42 s, 3:07, 2:03:07, 4 d 02:03:07."""
    whole = int(seconds)
    days, whole = divmod(whole, 86400)
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02}:{minutes:02}:{left:02}"
    if hours:
        return f"{hours}:{minutes:02}:{left:02}"
    return f"{minutes}:{left:02}" if minutes else f"{left} s"


def short_seconds(seconds: float) -> str:
    """Returns the time of a step or a recovery with two or three digits that matter."""
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"


def short(value: float, unit: str = "") -> str:
    """Returns a number in steps of a thousand: 12.3k, 4.56M."""
    size, step = abs(value), ""
    for step in ("", "k", "M", "G", "T", "P"):  # noqa: B007  # the last one is for what is larger still
        if size < 999.5:
            break
        value, size = value / 1000, size / 1000
    return f"{value:.3g}{' ' if unit else ''}{step}{unit}"
