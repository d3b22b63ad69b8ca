"""Frames between an agent, its warm process and its store, and what is found in a script to import ahead."""

import os
import socket
import sys
from pathlib import Path

import pytest

from deadpool.host.errors import ProtocolError
from deadpool.proto import warm_wire
from deadpool.proto.warm_wire import Fork, Forked, ForkKind, FrameReader, Open, Opened, Ready
from deadpool.trainer_hooks.warm.imports import import_ahead, imported_names, module_file

FRAMES: list[warm_wire.Frame] = [
    Fork(request=3, kind=ForkKind.STORE, environment={"A": "ü\n", "B": "x" * 100_000}),
    Ready(problem="no torch"),
    Forked(request=-1, pid=7),
    Open(generation=2),
    Opened(generation=2, error="e"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_arrives_with_its_descriptors(frame: warm_wire.Frame) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        read_fd, write_fd = os.pipe()
        warm_wire.send(ours, frame, (read_fd,))
        received = warm_wire.receive(theirs)
        assert received is not None
        assert received[0] == frame
        os.write(write_fd, b"through")
        assert os.read(received[1][0], 100) == b"through"
        for fd in (read_fd, write_fd, *received[1]):
            os.close(fd)
        ours.close()
        assert warm_wire.receive(theirs) is None


def test_frames_are_found_however_the_bytes_come() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for frame in FRAMES[1:]:
            warm_wire.send(ours, frame)
        data = theirs.recv(1 << 16)
    reader = FrameReader()
    assert [frame for at in range(len(data)) for frame in reader.feed(data[at : at + 1])] == FRAMES[1:]
    assert FrameReader().feed(data) == FRAMES[1:]


def test_half_a_frame_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(b"\0\0\0\x09{}")
        ours.close()
        with pytest.raises(ProtocolError):
            warm_wire.receive(theirs)


def test_only_torch_and_its_relatives_are_imported_ahead() -> None:
    source = """
import os, torch, torch.nn as nn
from torch.distributed import fsdp, tensor
from . import torch_of_ours
if True:
    import torchvision
def late():
    import torchaudio
import numpy as np
import deadpool
"""
    assert imported_names(source) == [
        ("torch", ()),
        ("torch.nn", ()),
        ("torch.distributed", ("fsdp", "tensor")),
        ("numpy", ()),
        ("deadpool", ()),
    ]


@pytest.mark.parametrize(
    ("statement", "ahead"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "4"', ["numpy"]),
        ('os.environ.setdefault("TORCH_LOGS", "all")', ["numpy"]),
        ('if True:\n    del os.environ["MKL_NUM_THREADS"]', ["numpy"]),
        ("for name, value in settings:\n    environ[name] = value", ["numpy"]),
        ("os.environ.update(settings)", ["numpy"]),
        ('os.environ["TOKENIZERS_PARALLELISM"] = "false"', ["numpy", "torch"]),
        ('rank = int(os.environ["RANK"]) if "RANK" in os.environ else settings.pop("OMP_x")', ["numpy", "torch"]),
    ],
)
def test_what_libraries_read_as_they_are_loaded_is_set_first(statement: str, ahead: list[str]) -> None:
    names = imported_names(f"import os\nimport numpy\n{statement}\nimport torch\n")
    assert [module for module, _ in names] == ahead


@pytest.mark.parametrize(
    ("source", "ahead"),
    [
        ("import torch\ndef main():\n    torch.optim.SGD(parameters)", True),
        ("import torch\nfrom torch.optim import SGD", True),
        ("import torch\nfrom torch import optim as o", True),
        ("import torch\nloss.backward()", True),
        ("import torch\nmodel.eval()", False),
        ("import trainer\ntrainer.optim.SGD(parameters)", False),
        ("import torch, os\ndef main():\n    os.environ['TORCH_COMPILE_DISABLE'] = '1'\n    torch.optim.SGD(parameters)", False),
    ],
)
def test_what_an_optimizer_needs_is_imported_ahead_for_a_script_that_trains(source: str, ahead: bool) -> None:
    assert (("torch._dynamo", ()) in imported_names(source)) == ahead


def test_what_the_scripts_own_modules_import_is_imported_ahead_too(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import numpy\nimport parts.block\nimport script\noptimizer = torch.optim.SGD")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "block.py").write_text("import torch.nn\n")
    (tmp_path / "broken.py").write_text("1 +")
    source = "import os, broken, model\nimport model as again\nimport torch"
    (tmp_path / "script.py").write_text(source)
    expected = [("numpy", ()), ("torch.nn", ()), ("torch", ()), ("torch", ()), ("torch._dynamo", ())]
    assert imported_names(source, tmp_path) == expected
    (tmp_path / "parts" / "block.py").write_text("import os, torch.nn\nos.environ['OMP_NUM_THREADS'] = '1'\n")
    assert imported_names(source, tmp_path) == [("numpy", ()), ("torch.nn", ())]


def test_what_cannot_be_imported_ahead_is_left_to_the_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch_that_is_nowhere\nfrom deadpool.host import errors, nothing_there\n")
    assert import_ahead(script) == ["torch_that_is_nowhere"]
    script.write_text("import torch; 1 +")
    assert import_ahead(script) == []


def test_a_module_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pack_of_test" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('run')")
    (package / "module.py").touch()
    (package / "__main__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert module_file("pack_of_test.inner.module") == package / "module.py"
    assert module_file("pack_of_test.inner") == package / "__main__.py"
    assert module_file("pack_of_test") is None
    assert module_file("pack_of_test.inner.none") is None
    assert module_file("nowhere_at_all.module") is None
