"""What a joiner finds of its predecessor before it builds anything: in its own vault, or at whoever holds the replicas."""

from pathlib import Path

import torch
from replicas import RANK, TOKEN, Replica, ask, send, serving
from torch import nn

from deadpool.proto.messages import Endpoint, Placement, SlotKind
from deadpool.proto.vault.layout import SNAPSHOT_NAMES, SlotFile, reserve, slot_path
from deadpool.proto.vault.wire import ReserveSlots
from deadpool.trainer_hooks.groups.messages import Messages
from deadpool.trainer_hooks.predecessor import MESSAGES, Predecessor, predecessor
from deadpool.trainer_hooks.state.metadata import pack_meta
from deadpool.trainer_hooks.state.training_state import TrainingState


def metadata(messages: Messages) -> bytes:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    state = TrainingState(models={"model": model}, optimizers={"optimizer": optimizer}, extra={MESSAGES: messages})
    return pack_meta(state.capture_meta())


def placed(*holders: Endpoint) -> Placement:
    return Placement(rank=RANK, local_rank=0, node_id="node1", node_rank=1, holders=holders)


def test_from_the_holder_of_a_replica(tmp_path: Path) -> None:
    messages = Messages()
    messages.keep("pp#0/recv/0", [torch.tensor([1])])
    nobody = Endpoint(node_id="node9", host="127.0.0.1", port=1)
    with serving(tmp_path) as receiver:
        holder = Endpoint(node_id="node2", host="127.0.0.1", port=receiver.server.port)
        assert predecessor(tmp_path, placed(holder), TOKEN) == Predecessor()
        connection, replica = receiver.connect(), Replica(step=5, meta=metadata(messages))
        ask(connection, ReserveSlots(rank=RANK, slot_bytes=replica.slot_bytes))
        send(connection, replica)
        found = predecessor(tmp_path, placed(nobody, holder), TOKEN)
        assert found.extras == {MESSAGES: messages.state_dict()}
        assert found.tables is not None
        assert found.tables.layout.unique_bytes == len(replica.data)


def test_from_its_own_vault_where_a_slot_is_torn_and_one_cannot_be_read(tmp_path: Path) -> None:
    messages = Messages()
    messages.keep("pp#0/recv/0", [torch.tensor([1])])
    for name, meta in zip(SNAPSHOT_NAMES, (b"unreadable", metadata(messages)), strict=False):
        path = slot_path(tmp_path, SlotKind.SNAPSHOT, RANK, name)
        replica = Replica(step=5, meta=meta)
        reserve(path, replica.slot_bytes)
        slot = SlotFile(path)
        cut = replica.header.layout_bytes
        slot.seal(replica.header, replica.tables[:cut], replica.tables[cut:])
        slot.close()
    assert predecessor(tmp_path, placed(), TOKEN).extras == {MESSAGES: messages.state_dict()}
