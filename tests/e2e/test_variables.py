"""torchrun's nineteen variables are there and right in every rank: a first one, one replaced on its node, a joiner on a spare."""

import json
from pathlib import Path

import pytest
from launching import Launcher
from variables import NAMES

pytestmark = pytest.mark.e2e

SCRIPT = str(Path(__file__).parents[1] / "support" / "variables.py")


def test_every_rank_has_torchruns_variables(launcher: Launcher) -> None:
    job = launcher.start(
        *("--standalone", "--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--role", "trainer"),
        *("--inject", "kill-rank:0@8", "--inject", "kill-node:1@16", SCRIPT, "--steps", "32"),
    )
    outcome = job.wait()
    assert outcome.exit_code == 0, f"{outcome.out}\n{outcome.err}"
    notes = [json.loads(line) for line in (job.folder / "variables").read_text().splitlines()]
    assert sorted((note["when"], note["RANK"]) for note in notes) == [
        *(("ended", str(rank)) for rank in range(4)),
        *(("joined", str(rank)) for rank in range(4)),
        *(("joined late", rank) for rank in ("0", "2", "3")),
    ]
    for note in notes:
        rank = int(note["RANK"])
        assert {name: note[name] for name in NAMES if not name.startswith("MASTER") and name != "TORCHELASTIC_ERROR_FILE"} == {
            "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2), "GROUP_WORLD_SIZE": "2", "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": "4",
            "ROLE_NAME": "trainer", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": job.job_id, "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        assert note["MASTER_ADDR"] == "127.0.0.1"
        assert int(note["MASTER_PORT"]) > 0
        assert note["TORCHELASTIC_ERROR_FILE"].endswith(".json")
    ports = {when: {note["MASTER_PORT"] for note in notes if note["when"] == when} for when in ("joined", "ended")}
    assert len(ports["joined"]) == len(ports["ended"]) == 1  # the same for all, whenever they came
    assert ports["joined"] != ports["ended"]
