"""Where a persistent checkpoint lies, and when it is one: a folder `step-<k>` whose marker file was written last.

<checkpoint_dir>/step-00000040/             .metadata and __<rank>_0.distcp: torch.distributed.checkpoint's own format
                               deadpool.json    the marker: what each rank held, under which names, with which checksums
<checkpoint_dir>/.partial-<run>-<generation>-<step>/     one that is being written; it becomes the above by a rename
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKER = "deadpool.json"
PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A complete checkpoint. `written_ns`: wall clock, to tell which is the newest."""

    path: Path
    job_id: str
    step: int
    world_size: int
    written_ns: int


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def complete_checkpoints(folder: Path) -> list[Complete]:
    """Returns the complete checkpoints of the folder, the newest first. One with an unreadable marker is none."""
    found = [one for path in folder.glob("step-*") if (one := read_marker(path)) is not None]
    return sorted(found, key=lambda one: -one.written_ns)


def read_marker(path: Path) -> Complete | None:
    try:
        marker: dict[str, Any] = json.loads((path / MARKER).read_text())
        return Complete(
            path=path,
            job_id=marker["job_id"],
            step=marker["step"],
            world_size=len(marker["ranks"]),
            written_ns=marker["written_ns"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
