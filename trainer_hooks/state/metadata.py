"""The metadata of a state as bytes, and what is wrong with it."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import torch

from deadpool.host.errors import ConfigError, SnapshotError

Meta = dict[str, Any]
GAPS = "gaps"  # "path: what it is" of all that the state consists of and a snapshot would not hold


def pack_meta(meta: Meta) -> bytes:
    """Returns the metadata as bytes. SnapshotError names what the snapshot would not hold: nobody may rely on it."""
    if meta[GAPS]:
        raise SnapshotError(f"not in the snapshot: {_named(meta[GAPS])}")
    buffer = BytesIO()
    torch.save(meta, buffer)
    return buffer.getvalue()


def unpack_meta(data: bytes) -> Meta:
    """Returns what pack_meta was given. Runs no code from the data (weights_only)."""
    meta: Meta = torch.load(BytesIO(data), weights_only=True, map_location=_here)
    return meta


def check_gaps(gaps: Sequence[str]) -> None:
    """ConfigError names what a snapshot would not hold."""
    if gaps:
        raise ConfigError(
            f"protect(): cannot be restored safely: {_named(gaps)}; "
            "with protect(strict=False) the job runs without it, and a recovery may not be bit for bit"
        )


def _here(storage: Any, location: str) -> Any:
    """Returns the memory that a tensor is to have: of this process's own device, where it was on one."""
    return storage.cuda() if location.startswith("cuda") else storage


def _named(gaps: Sequence[str]) -> str:
    return f"{gaps[0]} (and {len(gaps) - 1} more)" if gaps[1:] else gaps[0]
