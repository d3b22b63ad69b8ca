"""A rank forked from the warm process behaves as one started by `python script`: compared, one beside the other."""

import json
import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest
from agents import TIMEOUT_S, Node, node_of

from deadpool.agent.processes.warm import spawn_warm
from deadpool.proto import warm_wire
from deadpool.proto.config import Entry
from deadpool.proto.messages import LaunchFailed, RankExited, Version
from deadpool.proto.warm_wire import Prepare, Ready

PORTRAIT = """
import atexit, json, multiprocessing, os, pickle, signal, sys, threading
import helper  # beside the script

class Thing:
    pass

def child(queue):
    queue.put((sys.argv[1:], __name__ != "__main__", helper.__file__))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    portrait = {
        "argv": sys.argv, "name": __name__, "file": __file__, "path0": sys.path[0], "spec": repr(__spec__ and __spec__.name),
        "cwd": os.getcwd(), "pickled": type(pickle.loads(pickle.dumps(Thing()))).__module__, "child": queue.get(),
        "executable": sys.executable, "builtins": type(__builtins__).__name__, "parent": multiprocessing.parent_process(),
        "main": sys.modules["__main__"].__dict__ is globals(), "threads": [thread.name for thread in threading.enumerate()],
        "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "term": int(signal.getsignal(signal.SIGTERM)),
        "annotations": __annotations__, "doc": __doc__, "stdin": sys.stdin.read(),
    }
    process.join()
    atexit.register(print, "at exit")
    print(json.dumps(portrait))
    threading.Thread(target=lambda: print("a thread's last words")).start()
"""

SPAWNS = """
import multiprocessing, sys
from dataclasses import dataclass
import torch
from torch.utils.data import DataLoader

@dataclass
class Batch:
    total: float

def collate(items):
    return Batch(float(sum(items)))

def double(batch):
    return Batch(2 * batch.total)

def send(queue):
    queue.put(Batch(1.0))

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.SimpleQueue()
    process = spawn.Process(target=send, args=(queue,))
    process.start()
    with spawn.Pool(1) as pool:
        made = [queue.get(), *pool.map(double, [Batch(2.0)])]
    process.join()
    made += DataLoader([1.0, 2.0, 3.0], batch_size=3, num_workers=1, collate_fn=collate, multiprocessing_context="spawn")
    print([batch.total for batch in made], all(type(batch) is Batch for batch in made), Batch.__module__)
"""

ENDS = {
    "sys.exit(7)": 7,
    "sys.exit(-1)": 255,
    "sys.exit()": 0,
    "sys.exit('too bad')": 1,
    "os._exit(9)": 9,
    "raise RuntimeError('x') from ValueError('y')": 1,
    "raise KeyboardInterrupt": 130,
    "import threading\nthreading.Thread(target=lambda: [][1]).start()": 0,
    "1 +": 1,
    "sys.excepthook = lambda *_: print('hooked')\nraise RuntimeError": 1,
}


def under_python(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-u", *arguments],
        cwd=node.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.mark.parametrize("entry", [Entry.SCRIPT, Entry.MODULE])
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_the_script_sees_what_it_would_see_under_python(tmp_path: Path, entry: Entry, start_method: str) -> None:
    command = ("script.py",) if entry is Entry.SCRIPT else ("script",)
    with node_of(tmp_path, PORTRAIT, entry=entry, start_method=start_method, command=(*command, "--lr", "a b")) as node:
        (tmp_path / "helper.py").touch()
        node.start_agent()
        node.start_ranks(0)
        assert node.expect(RankExited).exit_code == 0
        lines = node.lines("rank-0-gen1.log", 3)
        module = ["-m"] if entry is Entry.MODULE else []
        expected = under_python(node, *module, *command, "--lr", "a b").stdout.splitlines()
        assert json.loads(lines[0]) == json.loads(expected[0])
        assert lines[1:] == expected[1:] == ["a thread's last words", "at exit"]


@pytest.mark.timeout(400)  # four processes import torch, one after the other
@pytest.mark.parametrize("entry", [Entry.SCRIPT, Entry.MODULE])
def test_what_spawned_children_make_of_the_scripts_classes_arrives(tmp_path: Path, entry: Entry) -> None:
    """Where torch was imported ahead, and multiprocessing with it."""
    command = "script.py" if entry is Entry.SCRIPT else "script"
    with node_of(tmp_path, SPAWNS, entry=entry, command=(command,)) as node:
        node.start_agent()
        node.start_ranks(0)
        assert node.expect(RankExited).exit_code == 0
        assert node.lines("rank-0-gen1.log", 1)[-1] == "[1.0, 4.0, 6.0] True __main__"


def test_a_folder_or_zip_file_is_run_as_by_python(tmp_path: Path) -> None:
    source = "import json, sys, helper\nprint(json.dumps([sys.argv, __file__, sys.path[0], helper.__file__]))\n"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(source)
    (tmp_path / "folder" / "helper.py").touch()
    zipapp.create_archive(tmp_path / "folder", tmp_path / "script.pyz")
    for name in ("folder", "script.pyz"):
        (node_folder := tmp_path / f"node-{name}").mkdir()
        with node_of(node_folder, "", command=(str(tmp_path / name), "--lr", "1")) as node:
            node.start_agent()
            node.start_ranks(0)
            assert node.expect(RankExited).exit_code == 0
            (line,) = node.lines("rank-0-gen1.log", 1)
            assert line == under_python(node, str(tmp_path / name), "--lr", "1").stdout.strip()


def test_it_ends_as_it_would_under_python(tmp_path: Path) -> None:
    with node_of(tmp_path, "", nproc_per_node=len(ENDS), command=("script.py",)) as node:
        bodies = list(ENDS)
        (tmp_path / "script.py").write_text(
            f"import os, sys\nprint('begun')\nsource = {bodies!r}[int(os.environ.get('RANK') or sys.argv[1])]\n"
            "exec(compile(source, __file__ + '.part', 'exec'), globals())\n"
        )
        node.start_agent()
        node.start_ranks(*range(len(bodies)))
        ends = {end.rank: end for end in (node.expect(RankExited) for _ in bodies)}
        for rank, (body, code) in enumerate(ENDS.items()):
            plain = under_python(node, "script.py", str(rank))
            assert ends[rank].exit_code == code == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode), body
            printed = (plain.stdout + plain.stderr).splitlines()
            assert sorted(node.lines(f"rank-{rank}-gen1.log", len(printed))) == sorted(printed), body
            raised = code == 1 and "exit" not in body
            assert bool(ends[rank].error) == (raised or code == 130), body


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"command": ("nowhere.py",)}, "nowhere.py: no such script"),
        ({"command": ("nowhere.mod",), "entry": Entry.MODULE}, "nowhere.mod: no such module"),
        ({"command": ("no-such-program",), "entry": Entry.PROGRAM}, "no-such-program: no such program"),
        ({"python": "/nowhere/python"}, "/nowhere/python: cannot be started"),
        ({"python": "/bin/false"}, "ended with 1"),
    ],
)
def test_what_cannot_be_launched_is_said_in_one_line(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    with node_of(tmp_path, "", **change) as node:
        node.start_agent()
        failed = node.expect(LaunchFailed)
        assert reason in failed.reason
        assert "\n" not in failed.reason
        node.start_ranks(0)
        assert node.expect(LaunchFailed).generation == 1


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_what_was_written_outlives_the_process(tmp_path: Path, start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    script = """
        import os, sys
        print("half a line", end="")
        sys.stdout.buffer.write(b", then bytes")
        os.kill(os.getpid(), 9)
    """
    with node_of(tmp_path, script, start_method=start_method) as node:
        node.start_agent()
        node.start_ranks(0)
        assert node.expect(RankExited).log_tail == "half a line, then bytes"


def test_a_program_gets_the_environment_and_its_exit_code_counts(tmp_path: Path) -> None:
    with node_of(tmp_path, "", entry=Entry.PROGRAM, command=("sh", "-c", "echo I am $RANK of $WORLD_SIZE; exit 5")) as node:
        node.start_agent()
        node.start_ranks(0)
        end = node.expect(RankExited)
        assert (end.exit_code, end.log_tail) == (5, "I am 0 of 1")


def test_torch_is_imported_once_ahead_and_without_threads(tmp_path: Path) -> None:
    """And no two ranks draw the same numbers."""
    script = """
        import os, sys
        already = [name for name in ("torch", "torch.nn.utils.prune", "torch.utils.benchmark") if name in sys.modules]
        import torch
        import torch.nn.utils.prune
        from torch.utils import benchmark
        print(already, os.environ["OMP_NUM_THREADS"], torch.get_num_threads(), len(os.listdir("/proc/self/task")))
        import numpy, random
        print(random.random(), numpy.random.random(), torch.rand(()).item())
    """
    with node_of(tmp_path, script, nproc_per_node=2) as node:
        node.start_agent()
        node.start_ranks(0, 1)
        assert {node.expect(RankExited).exit_code for _ in range(2)} == {0}
        found, drawn = node.lines("rank-0-gen1.log", 2)
        assert found == "['torch', 'torch.nn.utils.prune', 'torch.utils.benchmark'] 1 1 1"
        assert not set(drawn.split()) & set(node.lines("rank-1-gen1.log", 2)[1].split())


def test_the_warm_process_is_replaced_when_it_dies(tmp_path: Path) -> None:
    with node_of(tmp_path, "import os; print(os.getppid())") as node:
        agent = node.start_agent()
        node.start_ranks(0, generation=1)
        assert node.expect(RankExited).exit_code == 0
        assert node.lines("rank-0-gen1.log", 1) == [str(agent.pid)]  # the agent is the parent of what the warm process forks
        (warm,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(int(warm), 9)
        node.start_ranks(0, generation=2)
        assert node.expect(RankExited).generation == 2


def test_a_warm_process_of_another_version_says_so_and_ends() -> None:
    pid, control = spawn_warm(sys.executable, os.environ)
    with control:
        warm_wire.send(control, Prepare(version=Version(package="9.9", protocol=9)))
        received = warm_wire.receive(control)
        assert received is not None
        assert isinstance(received[0], Ready)
        assert received[0].problem.startswith(
            f"{sys.executable}: whoever starts the ranks has DeadPool 9.9 (protocol 9), here is"
        )
        assert warm_wire.receive(control) is None
    assert os.waitpid(pid, 0)[1] == 0
