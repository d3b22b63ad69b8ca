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


Imported = list[tuple[str, tuple[str, ...]]]  # a module, and the names that are taken from it


def imported_names(source: str, beside: Path | None = None) -> Imported:
    """Returns (module, names taken from it) for the script's top-level imports of torch*, numpy* and deadpool*, in order.

    So also for those of its own modules that lie `beside` it and are imported there. Then, when it trains with torch, what torch
    imports for an optimizer. Only those before a variable changes that their libraries read as they are loaded: each rank imports
    the rest itself.
    """
    found: Imported = []
    read: dict[Path | None, ast.Module] = {None: ast.parse(source)}
    if _gather(read[None], beside, found, read):
        trains = any(_trains(node) for module in read.values() for node in ast.walk(module))
        if trains and any(module.startswith("torch") for module, _ in found):
            found.append((_FOR_OPTIMIZERS, ()))
    return found


def _gather(script: ast.Module, beside: Path | None, found: Imported, read: dict[Path | None, ast.Module]) -> bool:
    """Adds to `found` what these statements import; returns False when it must end there. `read`: what was looked at already."""
    for statement in script.body:
        if any(_read_at_loading(name) for name in _changed_variables(statement)):
            return False
        for module, names in _imports(statement):
            if module.startswith(_ROOTS):
                found.append((module, names))
            elif beside is not None and (path := _own_module(module, beside)) not in read:
                read[path] = _parsed(path)
                if not _gather(read[path], beside, found, read):
                    return False
    return True


def _imports(statement: ast.stmt) -> Imported:
    match statement:
        case ast.Import(names=names):
            return [(alias.name, ()) for alias in names]
        case ast.ImportFrom(level=0, module=str(module), names=names):
            return [(module, tuple(alias.name for alias in names))]
    return []


def _own_module(module: str, beside: Path) -> Path | None:
    """Returns the module's file if it lies beside the script, None if it does not."""
    path = beside.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _parsed(path: Path | None) -> ast.Module:
    """Returns the file's statements; none of one that cannot be read: the script's import of it says why."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        if path is not None:
            return ast.parse(path.read_text(errors="replace"))
    return ast.Module(body=[], type_ignores=[])


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
        wanted = imported_names(script.read_text(errors="replace"), script.parent)
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
