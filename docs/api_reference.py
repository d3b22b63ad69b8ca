"""docs/api.md, made from the public names' own docstrings: `python docs/api_reference.py > docs/api.md`. Nothing is imported."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
INTRODUCTION = """\
# What a script can call

Made from the docstrings of the public names (`python docs/api_reference.py`); a test holds this file against it.
`import deadpool` has the first part; what is not here is not public. [tutorial.md](tutorial.md) has a whole script of each
kind, [frameworks.md](frameworks.md) the frameworks that own the loop.
"""
PUBLIC = {  # the file, and its public names in the order in which a script meets them
    "deadpool": {
        "trainer_hooks/run.py": ("join", "joined", "main", "Run"),
        "trainer_hooks/loop.py": ("Guard", "Attempt"),
        "trainer_hooks/steps.py": ("Steps",),
        "trainer_hooks/protection/counters.py": ("Counters",),
        "trainer_hooks/protection/description.py": ("Description",),
        "host/errors.py": ("DeadpoolError", "ConfigError"),
    },
    "deadpool.integrations.accelerate": {"integrations/accelerate.py": ("protect",)},
    "deadpool.integrations.transformers": {"integrations/transformers.py": ("ProtectedTrainer",)},
    "deadpool.integrations.lightning": {"integrations/lightning.py": ("DeadpoolCallback",)},
    "deadpool.integrations.deepspeed": {"integrations/deepspeed.py": ("protect",)},
}
WITH_FIELDS = {"Attempt", "Counters", "Description", "Guard"}  # a script reads them


def reference() -> str:
    """Returns the text of docs/api.md."""
    lines = [INTRODUCTION]
    for module, files in PUBLIC.items():
        lines.append(f"## {module}\n")
        for file, names in files.items():
            defined = {node.name: node for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, _DEFINITION)}
            for name in names:
                lines += _described(defined[name], "")
    return "\n".join(lines)


_DEFINITION = (ast.FunctionDef, ast.ClassDef)


def _described(node: ast.FunctionDef | ast.ClassDef, owner: str) -> Iterator[str]:
    """Yields the lines about one name, and about the members of a class that have something to say."""
    if isinstance(node, ast.ClassDef):
        yield f"### {node.name}\n"
        yield f"{_docstring(node)}\n"
        fields = [f"`{ast.unparse(each)}`" for each in node.body if isinstance(each, ast.AnnAssign) and _public(_target(each))]
        if fields and node.name in WITH_FIELDS:
            yield f"Fields: {', '.join(fields)}\n"
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and _public(member.name) and _docstring(member) and not _is_setter(member):
                yield from _described(member, node.name)
        return
    shown = f"{owner}.{node.name}" if owner else node.name
    arguments = "" if _is_property(node) else f"({_arguments(node.args, bound=bool(owner))})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    yield f"#### `{shown}{arguments}{returns}`\n".replace("'", "").replace('"', "")
    yield f"{_docstring(node)}\n"


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "").replace("\n\n\n", "\n\n")


def _arguments(arguments: ast.arguments, *, bound: bool) -> str:
    text = ast.unparse(arguments)
    return text.removeprefix("self").removeprefix(", ") if bound else text


def _public(name: str) -> bool:
    return not name.startswith("_")


def _target(field: ast.AnnAssign) -> str:
    return ast.unparse(field.target)


def _is_property(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in node.decorator_list)


def _is_setter(node: ast.FunctionDef) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)


if __name__ == "__main__":
    print(reference(), end="")
