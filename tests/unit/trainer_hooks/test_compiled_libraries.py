"""A compiler that is killed leaves no part of a library where inductor looks for one."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch._inductor.cpp_builder import BuildOptionsBase, CppBuilder

from deadpool.trainer_hooks.compiled_libraries import come_whole

WRITES_A_PART = """
import os, signal, sys
with open(sys.argv[sys.argv.index("-o") + 1], "w") as library:
    library.write(open(sys.argv[1]).read(3 if {fails} else -1))
    if {fails}:
        library.flush()
        os.kill(os.getppid(), signal.SIGKILL)  # as a rank is, with all that it has started
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def libraries_come_whole() -> None:
    come_whole()


def builder(folder: Path, *, fails: bool) -> CppBuilder:
    compiler, source = folder / "compiler", folder / "source"
    compiler.write_text(f"#!{sys.executable}\n{WRITES_A_PART.format(fails=fails)}")
    compiler.chmod(0o755)
    source.write_text("whole")
    return CppBuilder("library", str(source), BuildOptionsBase(compiler=str(compiler)), str(folder / "cache"))


def test_a_library_is_where_it_is_looked_for(tmp_path: Path) -> None:
    one = builder(tmp_path, fails=False)
    command = one.get_command_line()
    one.build()
    place = Path(one.get_target_file_path())
    assert place.read_text() == "whole"
    assert os.listdir(place.parent) == [place.name]
    assert one.get_command_line() == command


def test_a_process_that_is_killed_leaves_no_part_of_a_library(tmp_path: Path) -> None:
    """Here one that compiles for another, which has handed it what to build."""
    one = builder(tmp_path, fails=True)
    (tmp_path / "handed").write_bytes(pickle.dumps(one))
    code = "import pickle; pickle.load(open('handed', 'rb')).build()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not Path(one.get_target_file_path()).exists()
    again = builder(tmp_path, fails=False)
    again.build()
    assert Path(again.get_target_file_path()).read_text() == "whole"
