"""Compares what two runs of train_gpt.py wrote with --loss-log or --digest: are they the same, to the last bit?

    python examples/compare_runs.py unbroken.log broken.log

Exit code 0 when every rank has the same value at every step (or the same digest), 1 when not: the first differences are shown.
A rank that was replaced may write a line that its predecessor had written; that line must then say the same.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

END = sys.maxsize  # stands for the step of a digest, which comes after all steps
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a file: a step's loss (and held-out loss), or a digest at END. `value` is text: float.hex() or sha256."""

    rank: int
    step: int
    value: str


@dataclass(slots=True, kw_only=True)
class Record:
    """What a file says of each (step, rank), and the places where it says two things. The last line counts."""

    values: dict[tuple[int, int], str] = field(default_factory=dict)
    contradictions: list[tuple[int, int]] = field(default_factory=list)


def parse_line(text: str) -> Line:
    """Returns what a line of a loss log or of a digest file says; ValueError when it is neither."""
    fields = json.loads(text)
    match fields:
        case {"rank": int(rank), "step": int(step), "loss": str(loss), "held_out": str(held_out)}:
            return Line(rank=rank, step=step, value=f"{loss}, held out {held_out}")
        case {"rank": int(rank), "step": int(step), "loss": str(loss)}:
            return Line(rank=rank, step=step, value=loss)
        case {"rank": int(rank), "digest": str(digest)}:
            return Line(rank=rank, step=END, value=digest)
    raise ValueError(f"neither a loss nor a digest: {text.strip()!r}")


def read_record(path: Path) -> Record:
    """Returns the record of a file. A last line without its end is left out: its writer was killed."""
    record = Record()
    for text in path.read_text().splitlines(keepends=True):
        if not text.endswith("\n"):
            break
        line = parse_line(text)
        key = (line.step, line.rank)
        if record.values.get(key, line.value) != line.value:
            record.contradictions.append(key)
        record.values[key] = line.value
    return record


def place(key: tuple[int, int]) -> str:
    step, rank = key
    return f"rank {rank}" if step == END else f"step {step}, rank {rank}"


def differences(first: Record, second: Record) -> Iterator[str]:
    """Yields one line for each difference, the earliest step first."""
    for key in sorted(first.values.keys() | second.values.keys()):
        left, right = first.values.get(key, "nothing"), second.values.get(key, "nothing")
        if left != right:
            yield f"{place(key)}: {left} / {right}"
    for number, record in enumerate((first, second), start=1):
        for key in record.contradictions:
            yield f"{place(key)}: file {number} has two different lines for it"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    args = parser.parse_args()
    for path in (args.first, args.second):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    first, second = read_record(args.first), read_record(args.second)
    found = list(differences(first, second))
    for line in found[:SHOWN]:
        print(line)
    if found:
        print(f"different: {len(found)} differences")
        return 1
    if not first.values:
        print("nothing to compare: both files are empty")
        return 1
    print(f"same: {len(first.values)} values of {len({rank for _, rank in first.values})} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
