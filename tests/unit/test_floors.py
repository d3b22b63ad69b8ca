"""The house keeps its floors: who may import whom, and torch and click each in one room only (docs/ARCHITECTURE.md)."""

import ast
from pathlib import Path

import pytest

import deadpool

PACKAGE = Path(deadpool.__file__).parent
ROOMS = ("cli", "supervisor", "agent", "trainer_hooks", "deploy", "proto", "host")
MAY_IMPORT = {
    "cli": set(ROOMS),
    "supervisor": {"supervisor", "deploy", "proto", "host"},
    "agent": {"agent", "deploy", "proto", "host"},
    "trainer_hooks": {"trainer_hooks", "deploy", "proto", "host"},
    "deploy": {"deploy", "proto", "host"},
    "proto": {"proto", "host"},
    "host": {"host"},
}
ONLY_IN = {"torch": "trainer_hooks", "click": "cli", "rich": "cli"}


def files(room: str) -> list[Path]:
    return sorted(PACKAGE.joinpath(room).resolve().rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Returns every module that the file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_below(room: str) -> None:
    for path in files(room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("deadpool.")} & set(ROOMS)
        assert rooms <= MAY_IMPORT[room], f"{path} imports from {rooms - MAY_IMPORT[room]}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_lives_in_one_room(library: str) -> None:
    for room in set(ROOMS) - {ONLY_IN[library]}:
        for path in files(room):
            assert library not in {name.split(".")[0] for name in imports(path)}, f"{path} imports {library}"


def test_every_room_is_there() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS)
    for room in ROOMS:
        assert PACKAGE.joinpath(room).is_symlink()
        assert files(room)
