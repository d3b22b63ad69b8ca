"""Which cells the matrix has, which of them cannot work, and a small choice that meets every pair of pieces once."""

import itertools
import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass

PARALLELISMS = ("ddp", "zero", "fsdp", "hsdp", "tp", "tp-fsdp")
FACTORS: dict[str, tuple[str, ...]] = {  # of each at most one piece; all of one kind exclude each other
    "step": ("evaluation", "accumulation", "micro-steps"),
    "compute": ("checkpointing", "amp"),
    "copy": ("ema",),
    "weights": ("tied", "frozen"),
    "buffers": ("growing", "batchnorm", "syncbn"),
    "later": ("group-added", "unfreezing"),
    "optimizer": ("two-optimizers", "lbfgs", "adafactor", "fused", "foreach"),
    "schedule": ("plateau",),
}
PIECES = tuple(piece for pieces in FACTORS.values() for piece in pieces)
Cell = tuple[str, frozenset[str]]  # parallelism, pieces

SHARDED = ("fsdp", "hsdp", "tp", "tp-fsdp")
IMPOSSIBLE: dict[frozenset[str], str] = {  # torch itself cannot do these
    frozenset({"lbfgs", "zero"}): "each rank's part calls the closure as often as it likes: the collectives in it do not meet",
    frozenset({"lbfgs", "amp"}): "GradScaler takes no closure",
    **{frozenset({"lbfgs", each}): "the closure is the whole step" for each in ("accumulation", "micro-steps")},
    frozenset({"lbfgs", "group-added"}): "LBFGS has one parameter group",
    **{frozenset({"adafactor", each}): "no sharding rule for the norms that Adafactor takes of a DTensor" for each in SHARDED},
    **{
        frozenset({"lbfgs", frozen, each}): "LBFGS puts plain zeros beside DTensors where a parameter has no gradient"
        for each in SHARDED
        for frozen in ("frozen", "unfreezing")
    },
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind`: same | differs | refused | error | stuck. `problem`: "" when all was the same."""

    kind: str
    problem: str


def why_not(parallel: str, pieces: Collection[str]) -> str:
    """Returns why torch cannot train this, "" when it can."""
    cell = {parallel, *pieces}
    return next((reason for known, reason in IMPOSSIBLE.items() if known <= cell), "")


def name(cell: Cell) -> str:
    return "+".join([cell[0], *sorted(cell[1])])


def all_cells() -> list[Cell]:
    """Returns every parallelism with no piece, each piece, and each pair of pieces that do not exclude each other."""
    kinds = {piece: kind for kind, pieces in FACTORS.items() for piece in pieces}
    sets = [frozenset[str](), *(frozenset({piece}) for piece in PIECES)]
    sets += [frozenset(pair) for pair in itertools.combinations(PIECES, 2) if kinds[pair[0]] != kinds[pair[1]]]
    return [(parallel, pieces) for parallel in PARALLELISMS for pieces in sets if not why_not(parallel, pieces)]


def pairwise() -> list[Cell]:
    """Returns cells with many pieces each, so few that each pair (two pieces, or a parallelism and a piece) is in one of them.

    Greedy: of some random rows the one with the most pairs that are not met yet; the same list each time.
    """
    draw = random.Random(1)
    left = {frozenset(pair) for cell in all_cells() for pair in _pairs(cell)}
    chosen: list[Cell] = []
    while left:
        wanted = min(left, key=sorted)
        rows = [row for _ in range(60) if (row := _row(draw, wanted)) is not None]
        best = max(rows, key=lambda row: len(left & set(_pairs(row))))
        left -= set(_pairs(best))
        chosen.append(best)
    return chosen


def _pairs(cell: Cell) -> Iterator[frozenset[str]]:
    return (frozenset(pair) for pair in itertools.combinations((cell[0], *sorted(cell[1])), 2))


def _row(draw: random.Random, wanted: frozenset[str]) -> Cell | None:
    """Returns a random cell that has the wanted pair, None when what was drawn cannot work."""
    parallel = next((each for each in PARALLELISMS if each in wanted), draw.choice(PARALLELISMS))
    pieces = [next((piece for piece in kind if piece in wanted), draw.choice(["", *kind])) for kind in FACTORS.values()]
    row = parallel, frozenset(filter(None, pieces))
    return None if why_not(*row) else row
