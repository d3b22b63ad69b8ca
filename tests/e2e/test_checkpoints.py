"""The last line: a job is stopped, started again, loses all copies of a shard, and ends as the unbroken one, bit for bit."""

import json
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint.state_dict_loader as loader
from launching import Job, Launcher, until
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[2] / "examples" / "train_gpt.py")
SMALL = ("--layers", "2", "--width", "32", "--context", "32", "--batch", "2", "--eval-every", "100")
STEPS = 40
NODES = ("--standalone", "--nnodes", "2", "--nproc-per-node", "2")


def start(launcher: Launcher, *options: str) -> Job:
    training = (SCRIPT, "--parallel", "zero", "--steps", str(STEPS), "--loss-log", "losses", "--digest", "digests", *SMALL)
    return launcher.start(*NODES, "--summary-json", "summary.json", *options, *training)


def lines(job: Job, name: str = "losses") -> list[str]:
    path = job.folder / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_stopped_started_again_and_beyond_memory(launcher: Launcher, tmp_path: Path) -> None:
    unbroken = start(launcher)
    assert unbroken.wait().exit_code == 0
    folder = tmp_path / "checkpoints"
    options = ("--checkpoint-dir", str(folder))
    stopped = start(launcher, *options)
    until(lambda: len(lines(stopped)) > 4 * 8, 150, "eight steps are done")
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.wait().exit_code == 143
    (first,) = folder.glob("step-*")
    step = json.loads((first / "deadpool.json").read_text())["step"]
    strike = step + 6
    both = ("--spares", "2", "--inject", f"kill-node:0@{strike}", "--inject", f"kill-node:1@{strike}")
    again = start(launcher, *options, *both)
    outcome = again.wait()
    assert outcome.exit_code == 0, outcome.err
    events = [event["event"] for event in again.events()]
    assert "checkpoint_found" in events
    summary = json.loads((again.folder / "summary.json").read_text())
    if "back_to_checkpoint" in events:  # unless the second node died once the first one's ranks had been recovered
        assert summary["committed_steps_lost"] > 0
    expected = set(lines(unbroken))
    assert set(lines(stopped)) <= expected
    assert set(lines(again)) <= expected
    assert set(lines(stopped)) | set(lines(again)) == expected
    assert sorted(lines(again, "digests")) == sorted(lines(unbroken, "digests"))
    assert_readable_without_deadpool(folder / f"step-{STEPS:08d}")


def assert_readable_without_deadpool(path: Path) -> None:
    metadata = FileSystemReader(path).read_metadata()
    tensors = {name: entry for name, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)}
    state = {name: torch.full(entry.size, torch.nan) for name, entry in tensors.items()}
    loader.load(state, storage_reader=FileSystemReader(path), no_dist=True)
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    weights = [name for name in state if name.startswith("model.")]
    moments = [name for name in state if name.endswith(".exp_avg")]
    assert len(weights) >= len(moments) > 0
    assert {name.removeprefix("optimizer.state.").removesuffix(".exp_avg") for name in moments} <= {
        name.removeprefix("model.") for name in weights
    }
