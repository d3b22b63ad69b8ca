"""What a rank held at a boundary, as digests that can be written down and compared. Values only; no torch here."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path


class TablePart(StrEnum):
    """Where something that a step depends on, or gives, was found."""

    ITEM = "items"  # tensors of the state
    META = "meta"  # the rest of the state: random generators, parameter groups, extras
    LOOSE = "loose"  # what lies beside the state and may matter: attributes, generators that the step uses
    VALUE = "value"  # what the step has returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Of each part: name (or path) -> digest. A digest of something small is the thing itself, so that a reader sees it."""

    items: dict[str, str] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    loose: dict[str, str] = field(default_factory=dict)
    value: dict[str, str] = field(default_factory=dict)

    def part(self, part: TablePart) -> dict[str, str]:
        found: dict[str, str] = getattr(self, part.value)
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Table":
        """Raises ValueError (or TypeError) when the text is no table."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`expected`, `found`: digests; "" on the side that has nothing of that name."""

    part: TablePart
    name: str
    expected: str
    found: str

    def __str__(self) -> str:
        if not self.found:
            return f"{self.name} is gone"
        if not self.expected:
            return f"{self.name} is new"
        return f"{self.name} ({self.expected} became {self.found})"


def differences(expected: Table, found: Table) -> Iterator[Difference]:
    """Yields what the two tables do not agree in, part by part, by name."""
    for part in TablePart:
        left, right = expected.part(part), found.part(part)
        for name in sorted(left.keys() | right.keys()):
            if left.get(name, "") != right.get(name, ""):
                yield Difference(part=part, name=name, expected=left.get(name, ""), found=right.get(name, ""))


def table_path(folder: Path, *, step: int, generation: int, rank: int, when: str) -> Path:
    """Returns the file for what this rank held `before` it stepped to S_step in that generation, or `after`."""
    return folder / f"step-{step}" / f"generation-{generation}" / f"rank-{rank}-{when}.json"
