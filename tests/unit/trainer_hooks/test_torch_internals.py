"""What we use of torch's insides is there, and does what we take it for."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._dynamo import trace_rules

from deadpool.trainer_hooks import torch_internals
from deadpool.trainer_hooks.groups.group import Group


def test_dynamo_leaves_our_functions_alone() -> None:
    torch_internals.hide_from_dynamo("deadpool")
    assert trace_rules.check(Group.allreduce)
    assert trace_rules.check(Group.attach)


ROOM = Path(torch_internals.__file__).parent
FILES = sorted(ROOM.rglob("*.py"))
ELSEWHERE = {  # they take long to import
    "torch._dynamo",  # run.py: so that ranks share what it takes; no name of it is used there
    "torch.distributed.checkpoint.filesystem._StorageInfo",  # only who writes or reads a checkpoint loads this
    "torch.distributed.tensor.placement_types._StridedShard",
}


def test_the_installed_torch_has_all_that_we_use() -> None:
    assert torch_internals.missing() == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = ("torch._gone", "torch.nn.Module._gone", "torch.optim.Optimizer:_gone", "torch._nowhere.name")
    monkeypatch.setattr(torch_internals, "USED", (*torch_internals.USED[:3], *gone))
    assert tuple(torch_internals.missing()) == gone


def test_private_modules_and_names_are_imported_in_one_place() -> None:
    for path in FILES:
        private = {name for name in imported(path) if name.startswith("torch.") and "._" in name} - ELSEWHERE
        assert path.name == "torch_internals.py" or not private, f"{path} imports {private}"


def test_every_private_attribute_of_torchs_objects_is_listed() -> None:
    trees = {path: ast.parse(path.read_text()) for path in FILES}
    ours = {name for tree in trees.values() for name in defined(tree)}
    listed = {part for name in torch_internals.USED for part in name.replace(":", ".").split(".")}
    for path, tree in trees.items():
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)}
        assert used - ours - listed - NOT_TORCHS - WHERE_IT_IS_THERE == set(), path


NOT_TORCHS = {"_exit", "_run_module_as_main", "_getframe", "_ZSt13set_terminatePFvvE"}
WHERE_IT_IS_THERE = {"_reset_iter_state"}  # looked for before it is used


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def defined(tree: ast.AST) -> Iterator[str]:
    """Yields the names of functions, and of what is assigned or declared, as a name or as an attribute of self."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            if isinstance(node, ast.Name):
                yield node.id
            elif isinstance(node.value, ast.Name) and node.value.id == "self":
                yield node.attr
