"""What an agent is started with."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArguments:
    """`host`: the address at which other nodes reach this one. `open_files`: that it was allowed.

    `shared`: where each supervisor writes its endpoint, if not in `job_dir`. `remote`: the launcher may be on another machine.
    `journal`: the job's folder there; this node may then start the supervisor, with these further arguments.
    """

    job_dir: Path
    node_id: str
    hint: int
    host: str
    supervisor: str | None
    token: str
    open_files: int
    shared: Path | None = None
    remote: bool = False
    ends_as_job: bool = False  # its exit code is the job's, for a launcher that has no supervisor to tell it
    journal: Path | None = None
    for_supervisor: tuple[str, ...] = ()
