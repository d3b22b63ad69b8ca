"""train_gpt.py outside deadpool-launch: under plain python and torchrun it trains, checkpoints and resumes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
TINY = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--warmup-steps", "2", "--eval-batches", "1")
STEPS, EVERY = 8, 4
LIMIT_S = 150.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(320)]


def run(command: Sequence[str]) -> str:
    """Returns the command's output; it must end well. Whatever happens, nothing of it is left running."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGKILL)
            process.kill()
            process.communicate()
    assert process.returncode == 0, output
    return output


def train(folder: Path, launch: Sequence[str], *options: str) -> str:
    files = ("--loss-log", str(folder / "log"), "--digest", str(folder / "digest"), "--checkpoint-dir", str(folder / "disk"))
    every = ("--checkpoint-every", str(EVERY), "--eval-every", str(EVERY), "--steps", str(STEPS))
    return run([*launch, str(SCRIPT), *TINY, *every, *files, *options])


def losses(folder: Path) -> list[tuple[int, int, float]]:
    """Returns (rank, step, loss) in the order in which they were written."""
    lines = [json.loads(text) for text in (folder / "log").read_text().splitlines()]
    return [(line["rank"], line["step"], float.fromhex(line["loss"])) for line in lines]


def test_plain_python_resumes_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of an older run\n")
    output = train(tmp_path, [sys.executable])
    assert "held-out" in output.splitlines()[-1]
    whole, digest = losses(tmp_path), (tmp_path / "digest").read_text()
    assert [(rank, step) for rank, step, _ in whole] == [(0, step) for step in range(STEPS)]

    (tmp_path / "disk" / f"step-{STEPS:08d}-rank-0-of-1.pt").unlink()
    train(tmp_path, [sys.executable])
    assert losses(tmp_path) == whole + whole[EVERY:]  # it adds to the log, from the step of the checkpoint on
    assert (tmp_path / "digest").read_text() == 2 * digest


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["zero", "fsdp"])
def test_torchrun_resumes_from_what_all_ranks_have_written(tmp_path: Path, parallel: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train(tmp_path, torchrun, "--parallel", parallel)
    whole = {(rank, step): loss for rank, step, loss in losses(tmp_path)}
    assert whole.keys() == {(rank, step) for rank in range(2) for step in range(STEPS)}
    assert whole[0, 0] != whole[1, 0]  # each has data of its own

    (tmp_path / "disk" / f"step-{STEPS:08d}-rank-1-of-2.pt").unlink()  # rank 0's file of that step alone is no checkpoint
    train(tmp_path, torchrun, "--parallel", parallel)
    again = losses(tmp_path)[len(whole) :]
    assert sorted((rank, step) for rank, step, _ in again) == [(rank, step) for rank in range(2) for step in range(EVERY, STEPS)]
    for rank, step, loss in again:  # a restarted DDP may sum in another order: close, not equal
        assert loss == pytest.approx(whole[rank, step], rel=1e-4)
    assert len((tmp_path / "digest").read_text().splitlines()) == 4
