"""Trainings made of pieces, each taken through every way back from a failure by the real guard, slots, replicas and groups.

What a state held, and what a step returned, must be the same to the bit: from the live state, from the own snapshot, from replica
and peers in a new process, from a persistent checkpoint. `make test` has a choice in which each pair of pieces meets once;
`pytest -m matrix` runs every parallelism with every pair of pieces.
"""

from collections.abc import Callable, Collection

import pytest
from matrix_choice import Cell, Outcome, all_cells, name, pairwise

Run = Callable[[str, Collection[str]], Outcome]

pytestmark = pytest.mark.timeout(240)

# What fails today because of a known fault: the pieces that meet it, and what it is.
KNOWN: dict[frozenset[str], str] = {}


def params(cells: list[Cell], *more: pytest.MarkDecorator) -> list[object]:
    def marks(cell: Cell) -> list[pytest.MarkDecorator]:
        reasons = [reason for pieces, reason in KNOWN.items() if pieces <= {cell[0], *cell[1]}]
        return [*more, *(pytest.mark.xfail(strict=True, reason=reason) for reason in reasons[:1])]

    return [pytest.param(cell, id=name(cell), marks=marks(cell)) for cell in cells]


@pytest.mark.parametrize("cell", params(pairwise()))
def test_every_way_back_is_the_same_to_the_bit(cell: Cell, run_cell: Run) -> None:
    assert run_cell(*cell).problem == ""


@pytest.mark.matrix
@pytest.mark.parametrize("cell", params(all_cells()))
def test_every_pair(cell: Cell, run_cell: Run) -> None:
    assert run_cell(*cell).problem == ""
