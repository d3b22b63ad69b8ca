"""Runs the job's command in this process as a fresh `python script args` (or `python -m module args`) would."""

import builtins
import json
import os
import runpy
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from string import Template
from types import ModuleType

from deadpool.host.script import is_runnable
from deadpool.proto.config import Entry
from deadpool.trainer_hooks.warm.imports import module_file

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The job's command. `fresh`: start a new interpreter for it in place of this process. `safe_path`: as the user wants it."""

    entry: Entry
    arguments: tuple[str, ...]  # script, module or program, and what it gets
    fresh: bool
    safe_path: bool

    def problem(self) -> str:
        """Returns in one line why the command cannot run, "" when it can."""
        name = self.arguments[0]
        match self.entry:
            case Entry.SCRIPT if not is_runnable(name):
                return f"{name}: no such script (looked in {os.getcwd()})"
            case Entry.MODULE if module_file(name) is None:
                return f"{name}: no such module for {sys.executable}"
            case Entry.PROGRAM if shutil.which(name) is None:
                return f"{name}: no such program, or not executable"
        return ""

    def source(self) -> Path | None:
        """Returns the Python file that will be run, None for a program."""
        match self.entry:
            case Entry.SCRIPT:
                return Path(self.arguments[0])
            case Entry.MODULE:
                return module_file(self.arguments[0])
            case Entry.PROGRAM:
                return None

    def import_path(self) -> list[str]:
        """Returns what a fresh interpreter puts in front of sys.path."""
        if self.safe_path or self.entry is Entry.PROGRAM:
            return []
        return [os.getcwd() if self.entry is Entry.MODULE else str(Path(self.arguments[0]).resolve().parent)]

    def for_rank(self, local_rank: str) -> "Command":
        """Returns the command with torchrun's macro, ${local_rank}, filled in; a stand-in without a rank keeps it."""
        if not local_rank:
            return self
        name, *arguments = self.arguments
        return replace(self, arguments=(name, *(Template(each).safe_substitute(local_rank=local_rank) for each in arguments)))

    def run(self) -> None:
        """Does not return: ends with SystemExit, or is replaced by another program."""
        if self.entry is Entry.PROGRAM:
            os.execvp(self.arguments[0], self.arguments)
        if self.fresh:
            module = ["-m"] if self.entry is Entry.MODULE else []
            os.execv(sys.executable, [sys.executable, "-u", *module, *self.arguments])
        sys.argv = list(self.arguments)
        main = _new_main()
        if self.entry is Entry.MODULE:
            _run(lambda: runpy._run_module_as_main(self.arguments[0]))  # type: ignore[attr-defined]  # what `python -m` itself calls
        else:
            _run(lambda: _run_file(os.path.abspath(self.arguments[0]), main))


def _new_main() -> ModuleType:
    """Returns the script's module, not run yet, in the place of this program's.

    multiprocessing, where it was imported ahead, knows the main module by a second name: what a spawned child sends back is of
    classes of `__mp_main__`, for in the child the script goes by that name. And it remembers the folder where it was imported.
    """
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main
    if (process := sys.modules.get("multiprocessing.process")) is not None:
        process.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
    return main


def _run_file(script: str, main: ModuleType) -> None:
    main.__dict__.update(__file__=script, __cached__=None, __spec__=None, __loader__=SourceFileLoader("__main__", script))
    with open(script, "rb") as file:
        source = file.read()
    exec(compile(source, script, "exec", dont_inherit=True), main.__dict__)


def _run(body: Callable[[], None]) -> None:
    """Runs the script and ends as the interpreter would: the traceback without our own frames, and the same exit code."""
    code = 0
    try:
        body()
    except SystemExit as error:
        if error.code not in (None, 0):
            sys.last_type = SystemExit  # an ending with an error, for whoever asks while the process exits
        raise
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
            frame = frame.tb_next
        _report(error.with_traceback(frame))
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frame  # as the interpreter does
        sys.excepthook(type(error), error, frame)
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    sys.exit(code)


def _report(error: BaseException) -> None:
    """Writes the traceback for the agent, in torchrun's format, unless the script (torch's @record) has done so."""
    path = os.environ.get(_ERROR_FILE, "")
    if not path or os.path.exists(path):
        return
    text = "".join(traceback.format_exception(error))
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    Path(path).write_text(json.dumps({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}))
