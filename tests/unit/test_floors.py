"""The house keeps its floors (docs/architecture.md): who may import whom, no circles, and pure modules that stay pure."""

import ast
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

import deadpool

PACKAGE = Path(deadpool.__file__).parent
ROOMS = ("cli", "integrations", "supervisor", "agent", "trainer_hooks", "deploy", "proto", "host")
MAY_IMPORT = {
    "cli": set(ROOMS) - {"integrations"},
    "integrations": {"integrations", "trainer_hooks", "host"},
    "supervisor": {"supervisor", "deploy", "proto", "host"},
    "agent": {"agent", "deploy", "proto", "host"},
    "trainer_hooks": {"trainer_hooks", "deploy", "proto", "host"},
    "deploy": {"deploy", "proto", "host"},
    "proto": {"proto", "host"},
    "host": {"host"},
}
ONLY_IN = {"torch": {"trainer_hooks", "integrations"}, "click": {"cli"}, "rich": {"cli"}}

# What decides: events and a clock reading in, commands out. A pure module imports other pure ones, values, and nothing that acts.
PURE = (
    "supervisor.core", "supervisor.deadlines", "supervisor.injections", "supervisor.relays", "supervisor.resumption",
    "supervisor.model.*",
    "supervisor.failures.*", "supervisor.recovery.*", "supervisor.protection.*", "supervisor.report.events",
    "supervisor.report.measures", "supervisor.report.pulse", "supervisor.report.status", "supervisor.report.summary",
    "agent.core", "agent.edges.decisions", "agent.events", "agent.gathering", "agent.injections", "agent.needs",
    "agent.rank_process", "agent.roles", "agent.standins",
    "agent.logs.routing", "agent.supervisor_link.conversation", "agent.supervisor_link.homing", "agent.relay.group",
    "trainer_hooks.protocol", "trainer_hooks.protection.connections", "trainer_hooks.protection.interval",
    "trainer_hooks.protection.schedule", "trainer_hooks.drill.verdict", "trainer_hooks.groups.balance",
    "cli.commands.drain", "cli.commands.ended", "cli.doctor.checks", "cli.launcher.restarts", "cli.plan.*",
    "cli.simulate.cluster", "cli.simulate.estimate", "cli.simulate.measured", "cli.simulate.paper", "cli.simulate.sweep",
    "cli.simulate.training",
    "deploy.slurm.*", "proto.messages.*", "proto.config", "proto.drill", "proto.faults", "proto.step", "proto.streams",
    "proto.vault.slots", "proto.vault.holdings", "cli.holdings",
)  # fmt: skip
READS_A_SHIPPED_TABLE = {"supervisor.failures.rules"}  # always the same one
VALUES = {  # modules that also act, of which pure ones take values and functions over values
    "agent.processes.environment",
    "host.errors",
    "host.sizes",
    "proto.call_record",
    "proto.terms",
    "proto.vault.layout",
    "proto.version",
    "supervisor.failures.rules",
    "trainer_hooks.drill.tables",
}
PURE_MAY_IMPORT = {
    "abc", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "enum", "functools", "heapq", "ipaddress",
    "itertools", "json", "math", "operator", "posixpath", "random", "re", "signal", "statistics", "string", "struct", "tomllib",
    "types", "typing",
}  # fmt: skip


def files(room: str) -> list[Path]:
    return sorted(PACKAGE.joinpath(room).resolve().rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Returns every module that the file imports, wherever in it; of `from a import b` both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@cache
def house() -> dict[str, set[str]]:
    """Returns what each module of ours imports, by its name without `deadpool.`; packages are left out."""
    modules = {}
    for room in ROOMS:
        top = PACKAGE.joinpath(room).resolve()
        for path in files(room):
            if path.name != "__init__.py" and "generated" not in path.parts:
                modules[".".join((room, *path.relative_to(top).with_suffix("").parts))] = imports(path)
    return modules


def of_ours(imported: Iterable[str]) -> set[str]:
    return {name.removeprefix("deadpool.") for name in imported} & house().keys()


def arrows(fold: bool) -> dict[str, set[str]]:
    """Returns who imports whom: files, or (`fold`) folders and the files that lie beside them."""

    def place(name: str) -> str:
        return ".".join(name.split(".")[:2]) if fold else name

    found: dict[str, set[str]] = {place(name): set() for name in house()}
    for name, imported in house().items():
        found[place(name)] |= {place(other) for other in of_ours(imported)} - {place(name)}
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Returns some circle of the graph, as its nodes in order; [] when there is none."""
    left = {name: set(into) for name, into in graph.items()}
    while free := [name for name, into in left.items() if not into & left.keys()]:
        for name in free:
            del left[name]
    if not left:
        return []
    way = [min(left)]
    while (following := min(left[way[-1]] & left.keys())) not in way:
        way.append(following)
    return way[way.index(following) :]


def is_pure(name: str) -> bool:
    return name not in READS_A_SHIPPED_TABLE and any(fnmatchcase(name, pattern) for pattern in PURE)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_below(room: str) -> None:
    for path in files(room):
        rooms = {name.split(".")[1] for name in imports(path) if name.startswith("deadpool.")} & set(ROOMS)
        assert rooms <= MAY_IMPORT[room], f"{path} imports from {rooms - MAY_IMPORT[room]}"


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_lives_in_its_rooms(library: str) -> None:
    for room in set(ROOMS) - ONLY_IN[library]:
        for path in files(room):
            assert library not in {name.split(".")[0] for name in imports(path)}, f"{path} imports {library}"


@pytest.mark.parametrize("fold", [False, True], ids=["files", "folders"])
def test_there_is_no_circle(fold: bool) -> None:
    found = circle(arrows(fold))
    assert not found, " -> ".join([*found, found[0]])


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("name", sorted(filter(is_pure, house())))
def test_a_pure_module_imports_nothing_that_acts(name: str) -> None:
    for imported in sorted(house()[name]):
        if not imported.startswith("deadpool."):
            assert imported.split(".")[0] in PURE_MAY_IMPORT, f"{name} imports {imported}"
    for other in of_ours(house()[name]):
        assert is_pure(other) or other in VALUES, f"{name} imports {other}, which is not pure"


def test_every_name_of_a_pure_module_is_one() -> None:
    for pattern in PURE:
        assert any(fnmatchcase(name, pattern) for name in house()), f"there is no {pattern}"


def test_every_room_is_there() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(ROOMS)
    for room in ROOMS:
        assert PACKAGE.joinpath(room).is_symlink()
        assert files(room)


def test_no_test_imports_another() -> None:
    tests = Path(__file__).parents[1]
    for path in sorted(tests.rglob("test_*.py")):
        others = {name for name in imports(path) if any(part.startswith("test_") for part in name.split(".")[:-1])}
        assert not others, f"{path} imports {others}: what several tests need is in tests/support"


def test_no_two_classes_have_one_name() -> None:
    root = PACKAGE.joinpath("cli").resolve().parent
    paths = [path for room in ROOMS for path in files(room) if "generated" not in path.parts]
    paths += [path for folder in ("examples", "benchmarks") for path in sorted((root / folder).rglob("*.py"))]
    named: dict[str, list[Path]] = {}
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                named.setdefault(node.name, []).append(path)
    assert not {name: places for name, places in named.items() if len(places) > 1}
