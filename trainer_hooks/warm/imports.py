"""What the job's script will import of torch and its relatives, found without running it, and imported ahead of it."""

import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_ROOTS = ("torch", "numpy", "deadpool")
_READ_AT_LOADING = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "BLIS_",
    "TORCH",
    "PYTORCH_",
    "DNNL_",
    "ONEDNN_",
    "LD_",
    "MALLOC_",
)
_HOOKS = "deadpool.trainer_hooks.run"  # what `deadpool.join` loads when it is first touched
_FOR_OPTIMIZERS = "torch._dynamo"  # what torch loads when the first optimizer is made; it takes as long as torch itself


def module_file(name: str) -> Path | None:
    """Returns the file that `python -m name` would run, without running any package's __init__; None when there is none."""
    spec = _find(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.has_location else None


def _find(name: str) -> ModuleSpec | None:
    parent, _, _ = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    package = _find(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec(name, package.submodule_search_locations)


def imported_names(source: str) -> list[tuple[str, tuple[str, ...]]]:
    """Returns (module, names taken from it) for the script's top-level imports of torch*, numpy* and deadpool*, in order.

    Then, when it trains with torch, what torch imports for an optimizer. Only those before it changes a variable that their
    libraries read as they are loaded: the rest, each rank imports itself.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    script = ast.parse(source)
    for statement in script.body:
        if any(_read_at_loading(name) for name in _changed_variables(statement)):
            break
        if isinstance(statement, ast.Import):
            found += [(alias.name, ()) for alias in statement.names if alias.name.startswith(_ROOTS)]
        elif isinstance(statement, ast.ImportFrom) and statement.level == 0 and (statement.module or "").startswith(_ROOTS):
            found.append((statement.module or "", tuple(alias.name for alias in statement.names)))
    else:
        if any(module.startswith("torch") for module, _ in found) and any(map(_trains, ast.walk(script))):
            found.append((_FOR_OPTIMIZERS, ()))
    return found


def _trains(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="optim" | "backward"):
            return True
        case ast.Import(names=names):
            return any(alias.name == "torch.optim" for alias in names)
        case ast.ImportFrom(module=module, names=names):
            return module == "torch.optim" or (module == "torch" and any(alias.name == "optim" for alias in names))
    return False


def _read_at_loading(name: str) -> bool:
    return name.startswith(_READ_AT_LOADING) or not name


def _changed_variables(statement: ast.stmt) -> Iterator[str]:
    """Yields the environment variables that the statement sets or deletes, "" for one whose name only its run will show."""
    for node in ast.walk(statement):
        match node:
            case ast.Subscript(
                value=ast.Attribute(attr="environ") | ast.Name(id="environ"), slice=key, ctx=ast.Store() | ast.Del()
            ):
                yield _text(key)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name(id="environ"), attr="update")):
                yield ""
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(attr="environ") | ast.Name(id="environ" | "os"), attr="setdefault" | "pop" | "putenv"
                ),
                args=[key, *_],
            ):
                yield _text(key)


def _text(key: ast.expr) -> str:
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""


def import_ahead(script: Path) -> list[str]:
    """Imports what `imported_names` finds; returns the names that failed: the script will say why when it imports them itself."""
    try:
        wanted = imported_names(script.read_text(errors="replace"))
    except (SyntaxError, ValueError):
        return []  # the script itself reports it, with its line
    return [name for module, names in wanted for name in _import(module, names)]


def import_for_all() -> None:
    """Imports what any protected script will need."""
    for module in ("torch", _HOOKS, "torch.distributed.optim", "torch.distributed.fsdp"):
        importlib.import_module(module)


def _import(module: str, names: tuple[str, ...]) -> Iterator[str]:
    if module == "deadpool":
        module, names = _HOOKS, ()
    try:
        loaded = importlib.import_module(module)
    except Exception:  # whatever a module raises while it is imported
        yield module
        return
    for name in names:
        if name != "*" and not hasattr(loaded, name):
            with contextlib.suppress(Exception):  # not a submodule either: the script's own import says so
                importlib.import_module(f"{module}.{name}")


def torch_missing() -> str:
    """Returns "" when this interpreter has torch, else what the user should do."""
    if importlib.util.find_spec("torch") is not None:
        return ""
    python = sys.executable
    return f"torch is not installed for {python}; install it with: {python} -m pip install torch"
