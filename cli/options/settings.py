"""The settings of deadpool-launch: one row for each field of JobConfig that the command line can set.

Defaults are JobConfig's own. Options may be spelt with dashes or underscores, as torchrun's; those that torchrun has as well take
their default from the same variable (PET_NNODES...).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import click

from deadpool.cli.options import torchrun
from deadpool.proto.config import JobConfig, OnExhausted

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 110,
    "allow_interspersed_args": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`default`: only for fields that JobConfig gives none. `torchrun`: torchrun has the option too. `variable`: not PET_NAME."""

    field: str
    name: str
    help: str
    type: Any = str
    metavar: str | None = None
    default: Any = None
    torchrun: bool = False
    short: str = ""
    variable: str = ""

    def option(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        default = next(each.default for each in dataclasses.fields(JobConfig) if each.name == self.field)
        default = self.default if default is dataclasses.MISSING else default
        variables = [f"PET_{self.name.replace('-', '_').upper()}", self.variable] if self.torchrun else []
        flag = self.type is bool
        return click.option(
            *([f"-{self.short}"] if self.short else []),
            f"--{self.name}",
            self.field,
            is_flag=flag,
            type=self.type,
            metavar=self.metavar,
            default=default.value if isinstance(default, Enum) else default,
            show_default=default not in (None, "", ()) and not flag,
            envvar=[each for each in variables if each] or None,
            help=self.help,
        )


_SECONDS: dict[str, Any] = {"type": click.FloatRange(min=0, min_open=True), "metavar": "SECONDS"}
_NUMBER: dict[str, Any] = {"type": click.IntRange(min=0), "metavar": "N"}

SETTINGS = (
    Setting(field="nnodes", name="nnodes", type=torchrun.node_range, metavar="N|MIN:MAX", default=1, torchrun=True,
            help="Nodes that train. With a range, a script without deadpool.join() goes on with fewer when no spare is left."),
    Setting(field="nproc_per_node", name="nproc-per-node", type=torchrun.ranks_per_node, metavar="N|auto|cpu|gpu|xpu", default=1,
            torchrun=True, help="Ranks on each node."),
    Setting(field="spares", name="spares", **_NUMBER, help="Further nodes, warm, that wait to take a dead one's place."),
    Setting(field="replicas", name="replicas", **_NUMBER,
            help="Copies of each unique shard on other nodes; each survives one more node lost at once."),
    Setting(field="on_exhausted", name="on-exhausted", type=click.Choice([each.value for each in OnExhausted]),
            help="A node died and no spare is left: wait for one, or end the job."),
    Setting(field="heartbeat_interval_s", name="heartbeat-interval", **_SECONDS,
            help="Time between a node's signs of life.  [default: a third of the timeout, 1 s at most]"),
    Setting(field="heartbeat_timeout_s", name="heartbeat-timeout", **_SECONDS,
            help="HeartbeatMonitor after which a node is dead; longer for a node that has come back from longer pauses."),
    Setting(field="hang_timeout_s", name="hang-timeout", **_SECONDS,
            help="No rank's step advances for so long: the culprit is found and killed, even in the construction.  "
                 "[default: learned from the steps, at least 30 s]"),
    Setting(field="max_recoveries_without_progress", name="max-recoveries-without-progress", **_NUMBER,
            help="So many recoveries in a row without a newly committed step end the job."),
    Setting(field="max_restarts", name="max-restarts", **_NUMBER, torchrun=True,
            help="Scripts without deadpool.join(): restarts of all ranks before the job fails."),
    Setting(field="start_method", name="start-method", type=click.Choice(["forkserver", "spawn", "fork"]), torchrun=True,
            help="Ranks are forked from a process that has imported torch (fork: the same), or are fresh interpreters."),
    Setting(field="journal", name="journal", metavar="DIR",
            help="A folder that all nodes share, for the supervisor's journal: the supervisor has no home then, and when it is "
                 "lost with its machine, another node starts the next one."),
    Setting(field="log_dir", name="log-dir", torchrun=True, metavar="DIR",
            help="Where ranks' output and events.jsonl go.  [default: logs/JOB]"),
    Setting(field="log_bytes_max", name="log-bytes-max", type=click.IntRange(min=1 << 16), metavar="BYTES",
            help="Size at which a log file becomes FILE.1, and the FILE.1 before is gone."),
    Setting(field="redirects", name="redirects", short="r", type=torchrun.streams("--redirects"), metavar="STREAMS",
            torchrun=True,
            help="Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as 0:3,1:1."),
    Setting(field="tee", name="tee", short="t", type=torchrun.streams("--tee"), metavar="STREAMS", torchrun=True,
            help="Streams that go to files of their own and to the console."),
    Setting(field="local_ranks_filter", name="local-ranks-filter", type=torchrun.local_ranks, metavar="LOCAL_RANKS",
            torchrun=True, help="The console shows only these local ranks' output, as 0,1.  [default: all]"),
    Setting(field="stdout_filters", name="duplicate-stdout-filters", type=torchrun.words, metavar="WORDS", torchrun=True,
            help="Lines of teed stdout that hold one of these words also go to filtered_stdout.log."),
    Setting(field="stderr_filters", name="duplicate-stderr-filters", type=torchrun.words, metavar="WORDS", torchrun=True,
            help="The same for stderr."),
    Setting(field="role", name="role", torchrun=True, metavar="NAME", help="ROLE_NAME of the ranks."),
    Setting(field="virtual_local_rank", name="virtual-local-rank", type=bool, torchrun=True,
            help="Every rank has LOCAL_RANK 0 and sees its own GPU only."),
    Setting(field="numa_binding", name="numa-binding", torchrun=True, metavar="[node|socket|exclusive|core-complex]",
            type=click.Choice(["", "node", "socket", "exclusive", "core-complex"]), help="Ranks run on CPUs near their GPU."),
    Setting(field="signals", name="signals-to-handle", type=torchrun.signal_names, metavar="SIGNALS", torchrun=True,
            help="Signals that end the job; ranks get the one that came."),
    Setting(field="verify_every", name="verify-every", **_NUMBER,
            help="Every N steps, compare replicated state across its holders: finds silent corruption. 0: never."),
    Setting(field="checkpoint_dir", name="checkpoint-dir", metavar="DIR",
            help="Persistent checkpoints go there, readable with torch.distributed.checkpoint. All nodes must see it."),
    Setting(field="checkpoint_every", name="checkpoint-every", **_NUMBER,
            help="Write one every N steps. 0: only when the job ends or is stopped."),
    Setting(field="keep", name="keep", type=click.IntRange(min=1), metavar="N", help="Checkpoints to keep."),
    Setting(field="resume", name="resume", metavar="auto|never|PATH",
            help="Start from the newest complete checkpoint in --checkpoint-dir, from nothing, or from that checkpoint."),
    Setting(field="checkpoint_timeout_s", name="checkpoint-timeout", **_SECONDS,
            help="For the last checkpoint, when the job ends."),
    Setting(field="job_id", name="job-id", metavar="JOB", help="The job's name.  [default: the script's, with a random part]"),
    Setting(field="stop_grace_s", name="shutdown-timeout", type=click.FloatRange(min=0), metavar="SECONDS", torchrun=True,
            variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT", help="From SIGTERM to SIGKILL when ranks are stopped."),
)  # fmt: skip
