"""From which persistent checkpoint do the ranks start? One rank looks, all do as it says: the folder may change meanwhile."""

import json
import threading
from pathlib import Path

from torch._C._distributed_c10d import Store

from deadpool.proto.checkpoint import Complete, complete_checkpoints, read_marker
from deadpool.proto.config import Keeping
from deadpool.proto.errors import ConfigError, UnavailableError
from deadpool.trainer_hooks.commit import wait_for

_KEY = "resume"


def agree(
    store: Store, keeping: Keeping, rank: int, world_size: int, generation: int, cancelled: threading.Event
) -> Complete | None:
    """Returns the checkpoint to start from, the same one on all ranks; None to start from nothing.

    ConfigError: it is of another number of ranks, or gone. UnavailableError: the generation has ended.
    """
    if not keeping.checkpoint_dir and keeping.resume in ("auto", "never"):
        return None
    try:
        if rank == 0:
            chosen = choose(keeping, generation)
            store.set(_KEY, json.dumps("" if chosen is None else str(chosen.path)))
        elif not wait_for(store, [_KEY], cancelled):
            raise UnavailableError("the generation ended before a checkpoint was chosen")
        path = json.loads(bytes(store.get(_KEY)))
    except RuntimeError as error:
        raise UnavailableError(f"rendezvous store: {error}") from error
    if not path:
        return None
    found = read_marker(Path(path))
    if found is None:
        raise ConfigError(f"checkpoint {path} cannot be read on this node: every node must see --checkpoint-dir")
    if found.world_size != world_size:
        raise ConfigError(
            f"checkpoint {path} is of {found.world_size} ranks, the job has {world_size}: use --resume never, or as many ranks"
        )
    return found


def choose(keeping: Keeping, generation: int) -> Complete | None:
    """Returns the newest checkpoint that counts. Before a first failure `--resume` decides; later this job's own come first."""
    known = complete_checkpoints(Path(keeping.checkpoint_dir)) if keeping.checkpoint_dir else []
    if keeping.resume == "auto":
        return next(iter(known), None)
    own = next((one for one in known if one.job_id == keeping.job_id), None) if generation > 1 else None
    return own if own is not None or keeping.resume == "never" else read_marker(Path(keeping.resume))
