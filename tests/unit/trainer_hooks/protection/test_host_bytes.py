"""What a rank's state takes of host memory is what docs/guarantees.md says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from replicas import join_threads
from torch import nn

from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.proto.messages import Endpoint
from deadpool.proto.secret import make_token
from deadpool.proto.vault.layout import snapshot_slots
from deadpool.trainer_hooks.protection.peers import Peers
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.slots import capacity
from deadpool.trainer_hooks.protection.snapshot import layout_of
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState

GUARANTEES = Path(__file__).parents[4] / "docs/guarantees.md"
RANK, TOKEN = 3, make_token()


def documented(*arguments: Any, **options: Any) -> int:
    (code,) = re.findall(r"```python\n(def host_bytes.*?)```", GUARANTEES.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)  # the text of the documentation is what is tested
    size_bytes: int = names["host_bytes"](*arguments, **options)
    return size_bytes


def taken(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.glob(pattern))


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("verify_every", [0, 4])
def test_the_vaults_take_what_is_documented(tmp_path: Path, checkpoints: bool, verify_every: int) -> None:
    model = nn.Sequential(nn.Linear(300, 70), nn.BatchNorm1d(70), nn.Linear(70, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, extra={})
    shared: Peers = {held.key: (1,) for held in state.held() if held.key.startswith("model/")}
    layout, growth, meta_bytes = layout_of(state.held(), shared), state.growth(), len(pack_meta(state.capture_meta()))
    snapshot_bytes, replica_bytes = (
        capacity(size_bytes + growth.size_bytes, len(layout.items) + growth.items, meta_bytes)[0]
        for size_bytes in (layout.data_bytes, layout.unique_bytes)
    )
    vault, server = Vault.create(tmp_path, "job", "node"), ReplicaServer("127.0.0.1", TOKEN)
    server.start(vault.folder)
    slots = snapshot_slots(checkpoints=checkpoints, going_back=verify_every > 1)
    vault.reserve_snapshots(RANK, snapshot_bytes, replica_bytes, slots=slots)
    client = VaultClient(Endpoint(node_id="node", host="127.0.0.1", port=server.port), TOKEN)
    client.reserve(RANK, replica_bytes)
    state.step_begins()
    model(torch.rand(4, 300)).sum().backward()
    optimizer.step()
    state.optimizer_steps(optimizer)
    sizes = {held.key: held.tensor.nbytes for held in state.held()}
    unique = [size_bytes for key, size_bytes in sizes.items() if key not in shared]
    expected = documented([*sizes.values()], unique, meta_bytes, checkpoint_dir=checkpoints, verify_every=verify_every)
    assert taken(vault.folder, "snapshot-*") + taken(vault.folder, "replica-*") == expected
    client.close()
    server.close()
    vault.remove()
    join_threads()
