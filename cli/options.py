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

from deadpool.proto.config import JobConfig, OnExhausted

CONTEXT_SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda name: name.replace("_", "-"),
    "max_content_width": 110,
    "allow_interspersed_args": False,
}

# Options of torchrun for jobs over several machines: known, so that the answer is not "no such option".
TORCHRUN_LATER = (
    "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr", "master-port", "local-addr",
)  # fmt: skip


def count(text: str) -> int:
    """Returns a number of nodes or ranks. torchrun's other spellings are known and refused in words."""
    low, colon, high = str(text).partition(":")
    if not low.isdecimal() or (colon and low != high):
        later = " (ranges, 'auto', 'cpu' and 'gpu' are not built yet)" if colon or low in ("auto", "cpu", "gpu") else ""
        raise click.BadParameter(f"{text!r} is not a number{later}.")
    if int(low) < 1:
        raise click.BadParameter(f"{text} is too small: at least 1.")
    return int(low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`default`: only for fields that JobConfig gives none. `torchrun`: torchrun has the option too."""

    field: str
    name: str
    help: str
    type: Any = str
    metavar: str | None = None
    default: Any = None
    torchrun: bool = False

    def option(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        default = next(each.default for each in dataclasses.fields(JobConfig) if each.name == self.field)
        default = self.default if default is dataclasses.MISSING else default
        return click.option(
            f"--{self.name}",
            self.field,
            type=self.type,
            metavar=self.metavar,
            default=default.value if isinstance(default, Enum) else default,
            show_default=default is not None,
            envvar=f"PET_{self.name.replace('-', '_').upper()}" if self.torchrun else None,
            help=self.help,
        )


_SECONDS: dict[str, Any] = {"type": click.FloatRange(min=0, min_open=True), "metavar": "SECONDS"}
_NUMBER: dict[str, Any] = {"type": click.IntRange(min=0), "metavar": "N"}

SETTINGS = (
    Setting(field="nnodes", name="nnodes", type=count, metavar="N", default=1, torchrun=True, help="Nodes that train."),
    Setting(field="nproc_per_node", name="nproc-per-node", type=count, metavar="N", default=1, torchrun=True,
            help="Ranks on each node."),
    Setting(field="spares", name="spares", **_NUMBER, help="Further nodes, warm, that wait to take a dead one's place."),
    Setting(field="replicas", name="replicas", **_NUMBER,
            help="Copies of each unique shard on other nodes; each survives one more node lost at once."),
    Setting(field="on_exhausted", name="on-exhausted", type=click.Choice([each.value for each in OnExhausted]),
            help="A node died and no spare is left: wait for one, or end the job."),
    Setting(field="heartbeat_interval_s", name="heartbeat-interval", **_SECONDS,
            help="Time between a node's signs of life.  [default: a third of the timeout, 1 s at most]"),
    Setting(field="heartbeat_timeout_s", name="heartbeat-timeout", **_SECONDS,
            help="Silence after which a node is dead; longer for a node that has come back from longer pauses."),
    Setting(field="hang_timeout_s", name="hang-timeout", **_SECONDS,
            help="No rank's step advances for so long: the culprit is found and killed, even in the construction.  "
                 "[default: learned from the steps, at least 30 s]"),
    Setting(field="max_recoveries_without_progress", name="max-recoveries-without-progress", **_NUMBER,
            help="So many recoveries in a row without a newly committed step end the job."),
    Setting(field="max_restarts", name="max-restarts", **_NUMBER, torchrun=True,
            help="Scripts without deadpool.join(): restarts of all ranks before the job fails."),
    Setting(field="start_method", name="start-method", type=click.Choice(["forkserver", "spawn"]), torchrun=True,
            help="Ranks are forked from a process that has imported torch, or are fresh interpreters."),
    Setting(field="log_dir", name="log-dir", torchrun=True, metavar="DIR",
            help="Where ranks' output and events.jsonl go.  [default: logs/JOB]"),
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
    Setting(field="stop_grace_s", name="shutdown-timeout", **_SECONDS, torchrun=True,
            help="From SIGTERM to SIGKILL when ranks are stopped."),
)  # fmt: skip
