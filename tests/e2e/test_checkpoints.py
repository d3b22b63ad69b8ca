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
from training import STEPS, Training, finished, start

pytestmark = pytest.mark.e2e

SIMPLE = str(Path(__file__).parents[1] / "support" / "growing.py")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def step_of(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / "deadpool.json").read_text())["step"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_stopped_started_again_and_beyond_memory(launcher: Launcher, reference: Training, tmp_path: Path) -> None:
    """The second job loses both nodes at the same time, or one after the other: what it has then is memory, or the checkpoint."""
    folder = tmp_path / "checkpoints"
    options = ("--checkpoint-dir", str(folder))
    stopped = start(launcher, "zero", *options, slowly=True)  # there is time to stop it
    until(lambda: len(lines(stopped.folder / "losses")) > 4 * 4, 150, "four steps are done")
    stopped.process.send_signal(signal.SIGTERM)
    assert stopped.wait().exit_code == 143
    (first,) = folder.glob("step-*")
    strike = step_of(first) + 6
    both = ("--spares", "2", "--inject", f"kill-node:0@{strike}", "--inject", f"kill-node:1@{strike}")
    job = start(launcher, "zero", *options, *both)
    again = finished(job)
    assert "checkpoint_found" in [event["event"] for event in job.events()]
    done = set(lines(stopped.folder / "losses")) | set(lines(again.losses))
    assert done == set(lines(reference.losses))
    assert sorted(lines(again.digests)) == sorted(lines(reference.digests))
    assert_readable_without_deadpool(folder / f"step-{STEPS:08d}")


def start_simple(launcher: Launcher, folder: Path, steps: int) -> Job:
    """A training that could go on for long."""
    nodes = ("--standalone", "--nnodes", "1", "--nproc-per-node", "2", "--checkpoint-dir", str(folder))
    return launcher.start(*nodes, SIMPLE, "--steps", str(steps), "--grows-at", "0", "--grows-by", "64")


@pytest.mark.long
def test_asked_for_while_the_job_runs_and_the_older_one_when_the_newest_is_bad(launcher: Launcher, tmp_path: Path) -> None:
    """SIGUSR1: a checkpoint, and the job goes on. Later the newest one has flipped bytes: it is named, an older one used."""
    folder = tmp_path / "checkpoints"
    job = start_simple(launcher, folder, 100_000)
    until(lambda: len(lines(job.folder / "losses")) > 2 * 5, 60, "five steps are done")
    job.process.send_signal(signal.SIGUSR1)
    until(lambda: "checkpoint" in [event["event"] for event in job.events()], 60, "the checkpoint is written")
    (asked_for,) = folder.glob("step-*")
    before = len(lines(job.folder / "losses"))
    until(lambda: len(lines(job.folder / "losses")) > before + 2 * 5, 60, "the job has gone on")
    job.process.send_signal(signal.SIGTERM)
    assert job.wait().exit_code == 143
    (newest,) = set(folder.glob("step-*")) - {asked_for}
    with (newest / "__1_0.distcp").open("r+b") as file:
        file.seek(-100, 2)  # of rank 1's last item, or what comes behind it
        flipped = bytes(byte ^ 0xFF for byte in file.read(100))
        file.seek(-100, 2)
        file.write(flipped)
    steps = step_of(asked_for) + 8
    again = start_simple(launcher, folder, steps)
    outcome = again.wait()
    assert outcome.exit_code == 0, outcome.err
    assert f"{newest}" in outcome.err, outcome.err
    assert "passed over" in outcome.err, outcome.err
    repeated = set(lines(again.folder / "losses"))
    assert {json.loads(line)["step"] for line in repeated} == set(range(steps - 8, steps))
    assert repeated & set(lines(job.folder / "losses"))
    values = {(line["rank"], line["step"]): line["loss"] for line in map(json.loads, lines(job.folder / "losses"))}
    assert all(values.get((line["rank"], line["step"]), line["loss"]) == line["loss"] for line in map(json.loads, repeated))


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
