"""Where a process's output goes: its log files, and what of it the console shows. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template

from deadpool.proto.config import JobConfig
from deadpool.proto.streams import STDERR, STDOUT, streams_of

_FILES = {STDOUT: "stdout.log", STDERR: "stderr.log"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRoutes:
    """Names are paths in the node's log folder. `name`: of the log that holds all the process prints.

    `console`: streams that the console shows, each line after `prefix`. `files`: further files, of one stream each.
    `filters`: stream -> (file, words): lines with such a word go there as well.
    """

    name: str
    prefix: bytes = b""
    console: frozenset[int] = frozenset()
    files: Mapping[int, str] = field(default_factory=dict)
    filters: Mapping[int, tuple[str, tuple[bytes, ...]]] = field(default_factory=dict)
    error_file: str = "error.json"


def file_only(name: str) -> LogRoutes:
    """Returns the routes of a process that has no rank to be named by."""
    return LogRoutes(name=f"{name}.log", error_file=f"{name}.error.json")


def rank_routes(config: JobConfig, rank: int, generation: int, attempt: str, template: str) -> LogRoutes:
    """Returns where a rank's output goes. `attempt`: TORCHELASTIC_RESTART_COUNT. `template`: torchrun's, "" for our prefix.

    A stream that torchrun's options name has a file of its own where torchrun would put it.
    """
    local_rank = rank % config.nproc_per_node
    teed, redirected = streams_of(config.tee, local_rank), streams_of(config.redirects, local_rank)
    shown = not config.local_ranks_filter or local_rank in config.local_ranks_filter
    name, folder = f"rank-{rank}-gen{generation}", f"attempt_{attempt}"
    words = {STDOUT: config.stdout_filters, STDERR: config.stderr_filters}
    prefix = Template(template or "[rank ${rank}] ").safe_substitute(
        role_name=config.role, rank=str(rank), local_rank=str(local_rank)
    )
    return LogRoutes(
        name=f"{name}.log",
        prefix=prefix.encode(errors="surrogateescape"),  # as the template was given
        console=frozenset(stream for stream in _FILES if shown and (teed & stream or not redirected & stream)),
        files={stream: f"{folder}/{local_rank}/{file}" for stream, file in _FILES.items() if (teed | redirected) & stream},
        filters={
            stream: (f"{folder}/filtered_{file}", tuple(word.encode(errors="surrogateescape") for word in words[stream]))
            for stream, file in _FILES.items()
            if words[stream] and teed & stream
        },
        error_file=f"{folder}/{local_rank}/error.json" if teed | redirected else f"{name}.error.json",
    )
