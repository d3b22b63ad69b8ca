"""The parts of a job's state are written by one place each, and `validate` finds what does not fit together."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from supervising import Scene

import deadpool
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.validate import validate

SUPERVISOR = Path(deadpool.__file__).parent.joinpath("supervisor").resolve()
WRITERS = {  # part -> who writes it, beside its own methods in state.py
    "recovery": ("recovery/",),
    "failures": ("failures/",),
    "protection": ("protection/",),
    "injections": ("injections.py",),
    "progress": (),
    "ending": (),
}
MOVE_DEADLINES = "resumption.py"  # for as long as there was no supervisor
MUTATORS = {"append", "add", "clear", "pop", "discard", "update", "remove", "setdefault", "extend"}


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    return (
        f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    )


def written(tree: ast.AST) -> Iterator[str]:
    """Yields what is assigned to or changed in place, as state.part.field."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
            targets = [node.func.value]
        yield from filter(None, map(dotted, targets))


@pytest.mark.parametrize("part", WRITERS)
def test_a_part_is_written_by_one_place(part: str) -> None:
    for path in SUPERVISOR.rglob("*.py"):
        name = str(path.relative_to(SUPERVISOR))
        if name.startswith((*WRITERS[part], "model/")) or name == MOVE_DEADLINES:
            continue
        wrong = [what for what in written(ast.parse(path.read_text())) if f"state.{part}." in f"{what}."]
        assert not wrong, f"{name} writes {wrong}"


def _vacant(state: JobState) -> None:
    state.roster.seats[1] = None


def _ended(state: JobState) -> None:
    state.ending.exit_code = 0


def _recovering(state: JobState) -> None:
    state.phase = Phase.RECOVER


def _gone(state: JobState) -> None:
    state.roster.ranks[2].present = False


def _dead_holder(state: JobState) -> None:
    state.recovery.holders = frozenset({"nobody"})


@pytest.mark.parametrize("break_it", [_vacant, _ended, _recovering, _gone, _dead_holder])
def test_what_does_not_fit_together_is_found(break_it: Callable[[JobState], None]) -> None:
    scene = Scene()
    scene.start(commit_step=4)
    validate(scene.state)
    break_it(scene.state)
    with pytest.raises(AssertionError, match=r"generation 1, (run|recover): "):
        validate(scene.state)
