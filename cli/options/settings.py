"""The settings of deadpool-launch: one row for each option, under the headings that --help and docs/configuration.md show.

Defaults are JobConfig's own. Options may be spelt with dashes or underscores, as torchrun's; those that torchrun has as well take
their default from the same variable (PET_NNODES...). torchrun's options that are no setting of a job are in torchrun.FOREIGN.
"""

from collections.abc import Callable
from typing import Any

import click

from deadpool.cli.options import torchrun
from deadpool.cli.options.setting import Setting
from deadpool.cli.options.types import (
    ANY_PLACE,
    RulesFile,
    TopologyFile,
    connections_or_auto,
    host_names,
    is_place,
    path_text,
    place,
    seconds,
    steps_or_auto,
    whole_number,
)
from deadpool.proto.config import OnExhausted, OnLoss, Places, Readiness, Transport

_SECONDS: dict[str, Any] = {"type": seconds(), "metavar": "SECONDS", "unit": "s"}
_NUMBER: dict[str, Any] = {"type": whole_number(), "metavar": "N"}
_STEPS: dict[str, Any] = {**_NUMBER, "unit": "steps"}
_PORT: dict[str, Any] = {"type": whole_number(at_least=1, at_most=65535), "metavar": "PORT"}
_FLAG: dict[str, Any] = {"type": bool, "default": False}

NODES_AND_RANKS = (
    Setting(field="nnodes", name="nnodes", type=torchrun.node_range, metavar="N|MIN:MAX", default="1", torchrun=True,
            help="Nodes that train. With a range, a script without deadpool.join() goes on with fewer when no spare is left."),
    Setting(field="nproc_per_node", name="nproc-per-node", type=torchrun.ranks_per_node, metavar="N|auto|cpu|gpu|xpu",
            default="1", torchrun=True, help="Ranks on each node."),
    Setting(field="spares", name="spares", **_NUMBER, help="Further nodes, warm, that wait to take a dead one's place."),
    Setting(field="all_here", name="standalone", **_FLAG, torchrun=True,
            help="All nodes on this machine, each a process tree of its own; what is done where no machines are named."),
    Setting(field="hosts", name="hosts", type=host_names, default=(), metavar="A,B,...",
            help="Start a node on each of these machines, over ssh; those that are more than --nnodes are spares."),
    Setting(field="interface", name="interface", metavar="NAME", default_is="what leads to the other nodes",
            help="The network interface by which nodes reach each other."),
    Setting(field="port", name="port", **_PORT, default_is="any free one", help="Where the supervisor listens."),
    Setting(field="journal", name="journal", type=path_text, metavar="DIR",
            help="A folder that all nodes share, for the supervisor's journal: the supervisor has no home then, and when it is "
                 "lost with its machine, another node starts the next one."),
    Setting(field="tls", name="tls", **_FLAG,
            help="Agents, the supervisor and commands speak TLS with each other, both sides with a certificate of the job's own "
                 "authority. Needs the extra tls (cryptography). Replicas and collectives are not encrypted: docs/security.md."),
    Setting(field="relay_above", name="relay-above", **_NUMBER,
            help="With more nodes than that, one agent in 64 is a relay: it speaks to the supervisor for the others of its "
                 "group, whose heartbeats then cost that a fraction. A relay that dies loses nobody else; nodes that die "
                 "together with it are noticed some seconds later."),
    Setting(field="job_id", name="job-id", metavar="JOB", default_is="the script's name and a random part",
            help="Names the job, for `deadpool status` and the others."),
    Setting(field="preflight", name="preflight", **_FLAG,
            help="First look for what would trouble the job on this machine (deadpool doctor); what would fail ends the launch."),
)  # fmt: skip

FAILURES_AND_TIMEOUTS = (
    Setting(field="replicas", name="replicas", **_NUMBER,
            help="Copies of each unique shard on other nodes; each survives one more node lost at the same time, and costs its "
                 "size in memory and in network traffic every step."),
    Setting(field="h2h", name="h2h", type=click.Choice([each.value for each in Transport]),
            help="How replicas get from one node's memory to another's. mpi: by pairs of MPI processes beside the job (they need "
                 "mpi4py and mpiexec: pip install mpich mpi4py), by TCP while there is none. off: there are no replicas; a lost "
                 "node needs a persistent checkpoint."),
    Setting(field="place_replicas", name="place-replicas", type=click.Choice([each.value for each in Places]),
            help="Who keeps the replicas. ring: the nodes that train, each for another one. spares: the spares, which need room "
                 "in /dev/shm for those of all nodes; a spare that takes a node's place then has its shards in its own "
                 "memory. both: in the ring, and once more by a spare."),
    Setting(field="topology", name="topology", type=TopologyFile(), metavar="FILE", default_is="Slurm's, where it has one",
            help="Which nodes fail together: lines of NODE DOMAIN, the domain as rack3 or pod1/rack3. Replicas are kept in "
                 "another domain."),
    Setting(field="replica_connections", name="replica-connections", type=connections_or_auto, metavar="N|auto",
            default_is="auto",
            help="TCP connections that carry each rank's replicas to a holder, and what a recovery fetches. auto: one, and 2, 4 "
                 "or 8 where that makes large states a fifth faster, as on a link that one stream does not fill."),
    Setting(field="on_exhausted", name="on-exhausted", type=click.Choice([each.value for each in OnExhausted]),
            help="A node died and no spare is left: wait for one, or end the job."),
    Setting(field="on_loss", name="on-loss", type=click.Choice([each.value for each in OnLoss]),
            help="What a lost process or node costs the others. swap: the step under way. restart: their processes as "
                 "well; all begin again with the states from the hosts' memory, as systems with in-memory checkpoints do: for "
                 "comparison, or for a library that does not survive what others survive. exclude: what the ranks of a lost "
                 "node add. The others go on without them until a node comes, with the gradients' mean over those left, where "
                 "every rank holds the same (DDP): other losses than the unbroken run's. See docs/guarantees.md."),
    Setting(field="spare_readiness", name="spare-readiness", type=click.Choice([each.value for each in Readiness]),
            help="How far a spare is before it is needed. cold: it has imported torch. warm: it has run the script up to join(). "
                 "hot: it has also built and rehearsed the ranks of the node that is likeliest to fail, which then waits for no "
                 "construction. Costs the memory of those ranks, and the script runs beside itself: see docs/spares.md."),
    Setting(field="hot_standins", name="hot-standins", **_NUMBER,
            help="On each node that trains, so many of its own ranks are built and rehearsed a second time, for a process that "
                 "is lost: it then waits for no construction. Each takes a rank's memory, of the same GPU too: see "
                 "docs/spares.md."),
    Setting(field="swap_stragglers", name="swap-stragglers", **_FLAG,
            help="A rank whose own part of a step, without what it waits for others, takes longer than everybody else's, again "
                 "and again: drain its node, so that a spare takes its ranks. Without it such a rank is only named."),
    Setting(field="snapshot_every", name="snapshot-every", type=steps_or_auto, metavar="N|auto", unit="steps", default_is="auto",
            help="Keep the state safe after every Nth step; a failure repeats the steps since. auto: after every step where that "
                 "costs the training less than 1 % of a step, else as seldom as it takes; deadpool status says how often."),
    Setting(field="verify_every", name="verify-every", **_STEPS,
            help="Every N steps, compare replicated state across its holders; a rank whose bytes differ is replaced and all go "
                 "back to the last state that was the same. 0: never. Smaller finds silent corruption sooner and costs more."),
    Setting(field="max_recoveries_without_progress", name="max-recoveries-without-progress", **_NUMBER,
            help="So many recoveries in a row without a newly committed step end the job."),
    Setting(field="failure_rules", name="failure-rules", type=RulesFile(), metavar="FILE",
            help="TOML: which failures are transient, permanent or fatal; its rules come before the shipped ones."),
    Setting(field="heartbeat_interval_s", name="heartbeat-interval", **_SECONDS, default_is="a third of the timeout, 1 s at most",
            help="Time between a node's heartbeats. Shorter costs the supervisor time: about 0.2 ms of CPU for each."),
    Setting(field="heartbeat_timeout_s", name="heartbeat-timeout", type=seconds(at_least=1.0), metavar="SECONDS", unit="s",
            help="Silence after which a node is dead (a broken connection counts immediately); up to half as long again for a "
                 "node that has come back from longer pauses. Shorter notices a frozen node sooner, and may give up a healthy "
                 "one that was only slow."),
    Setting(field="hang_timeout_s", name="hang-timeout", **_SECONDS, default_is="learned from the steps, at least 30 s",
            help="No rank's step advances for so long: the culprit is found and killed, even while it constructs its model. "
                 "Must be longer than the longest pause between two steps, evaluation and compilation included."),
    Setting(field="broken_collective_grace_s", name="broken-collective-grace", type=seconds(at_least=0.0), metavar="SECONDS",
            unit="s",
            help="A collective failed and nobody is dead: so long its cause may still become known, then the groups are opened "
                 "again with the same members. Shorter recovers sooner from a broken connection; longer has more failures "
                 "handled in one recovery instead of two."),
    Setting(field="quiesce_timeout_s", name="quiesce-timeout", **_SECONDS,
            help="In a recovery, for a survivor to leave its step: then its process is killed, and another is restored from "
                 "memory. Must be longer than the longest part of a step that cannot be interrupted."),
    Setting(field="join_timeout_s", name="join-timeout", **_SECONDS,
            help="In a recovery, for a new process to build the model and rehearse: then it is replaced. Must be "
                 "longer than the script takes to its first step, compilation included; longer has a hanging one waited for."),
    Setting(field="reform_timeout_s", name="reform-timeout", **_SECONDS,
            help="In a recovery, for opening all process groups again: then it is tried in another generation. Large jobs with "
                 "many groups need longer; longer waits longer for a rank that hangs while it opens them."),
    Setting(field="restore_timeout_s", name="restore-timeout", **_SECONDS,
            help="In a recovery, for moving the states to where they belong, and again for the first step: then it counts as "
                 "failed. Must be longer than one rank's state takes over the network."),
    Setting(field="stop_grace_s", name="shutdown-timeout", type=seconds(at_least=0.0), metavar="SECONDS", unit="s",
            torchrun=True, variable="TORCH_ELASTIC_SHUTDOWN_TIMEOUT", help="From SIGTERM to SIGKILL when ranks are stopped."),
)  # fmt: skip

CHECKPOINTS = (
    Setting(field="checkpoint_dir", name="checkpoint-dir", type=path_text, metavar="DIR",
            help="The last line of defence: persistent checkpoints, readable with torch.distributed.checkpoint, on storage that "
                 "all nodes see."),
    Setting(field="checkpoint_every", name="checkpoint-every", **_STEPS,
            help="Write one every N steps, off the critical path. 0: only when the job ends or is stopped, and at SIGUSR1."),
    Setting(field="keep", name="keep", type=whole_number(at_least=1), metavar="N", help="Checkpoints to keep."),
    Setting(field="resume", name="resume", type=path_text, metavar="auto|never|PATH",
            help="Start from the newest checkpoint in --checkpoint-dir that can be read, from nothing, or from that checkpoint."),
    Setting(field="checkpoint_timeout_s", name="checkpoint-timeout", **_SECONDS,
            help="For the last checkpoint, when the job ends: longer, and it ends without one."),
)  # fmt: skip

LOGS = (
    Setting(field="log_dir", name="log-dir", type=path_text, torchrun=True, metavar="DIR", default_is="logs/JOB",
            help="A log file for each rank, and events.jsonl."),
    Setting(field="log_bytes_max", name="log-bytes-max", type=whole_number(at_least=1 << 16), metavar="BYTES", unit="bytes",
            help="Size at which a log file becomes FILE.1, and the FILE.1 before is gone."),
    Setting(field="summary_json", name="summary-json", type=click.Path(dir_okay=False), metavar="FILE",
            help="Write there at the end what the log folder's summary.json has: steps, time spent, recoveries with phases."),
    Setting(field="dashboard", name="dashboard", type=place, metavar="[PORT]", alone=ANY_PLACE, is_value=is_place,
            help="Serve a page that shows the job live, for who has its key: `deadpool dashboard` prints the link. At the "
                 "supervisor's loopback, or HOST:PORT; without a port the first free one from 8470 on."),
    Setting(field="metrics_port", name="metrics-port", **_PORT,
            help="Prometheus metrics at http://HOST:PORT/metrics, where the supervisor listens; each agent has its own, on the "
                 "first free port after that one. http://HOST:PORT/targets names them all, for http_sd_configs."),
)  # fmt: skip

TORCHRUN = (
    Setting(field="module", name="module", short="m", **_FLAG, torchrun=True,
            help="SCRIPT is a module's name, as for python -m."),
    Setting(field="no_python", name="no-python", **_FLAG, torchrun=True, help="SCRIPT is a program, not a Python file."),
    Setting(field="run_path", name="run-path", **_FLAG, torchrun=True,
            help="SCRIPT is a Python file, whatever --no-python says."),
    Setting(field="max_restarts", name="max-restarts", **_NUMBER, torchrun=True,
            help="Scripts without deadpool.join(): restarts of all ranks before the job fails. A node lost in their first two "
                 "minutes counts only where no spare takes its place."),
    Setting(field="start_method", name="start-method", type=click.Choice(["forkserver", "spawn", "fork"]), torchrun=True,
            help="Ranks are forked from a process that has imported torch (fork: the same), or are fresh interpreters."),
    Setting(field="signals", name="signals-to-handle", type=torchrun.signal_names, metavar="SIGNALS", torchrun=True,
            help="Signals that end the job, beside USR1 and USR2; ranks get the one that came. USR1 asks for a checkpoint where "
                 "there are any, unless it is named here."),
    Setting(field="redirects", name="redirects", short="r", type=torchrun.streams("--redirects"), metavar="STREAMS",
            torchrun=True,
            help="Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both, or by local rank as 0:3,1:1."),
    Setting(field="tee", name="tee", short="t", type=torchrun.streams("--tee"), metavar="STREAMS", torchrun=True,
            help="Streams that go to files of their own and to the console."),
    Setting(field="local_ranks_filter", name="local-ranks-filter", type=torchrun.local_ranks, metavar="LOCAL_RANKS",
            torchrun=True, default_is="all", help="The console shows only these local ranks' output, as 0,1."),
    Setting(field="stdout_filters", name="duplicate-stdout-filters", type=torchrun.words, metavar="WORDS", torchrun=True,
            help="Lines of teed stdout that hold one of these words also go to filtered_stdout.log."),
    Setting(field="stderr_filters", name="duplicate-stderr-filters", type=torchrun.words, metavar="WORDS", torchrun=True,
            help="The same for stderr."),
    Setting(field="role", name="role", torchrun=True, metavar="NAME", help="ROLE_NAME of the ranks."),
    Setting(field="virtual_local_rank", name="virtual-local-rank", **_FLAG, torchrun=True,
            help="Every rank has LOCAL_RANK 0 and sees its own GPU only."),
    Setting(field="numa_binding", name="numa-binding", torchrun=True, metavar="[node|socket|exclusive|core-complex]",
            type=click.Choice(["", "node", "socket", "exclusive", "core-complex"]), help="Ranks run on CPUs near their GPU."),
)  # fmt: skip

SLURM = (
    Setting(field="slurm", name="slurm", **_FLAG, default_is="in an allocation",
            help="Nodes are those of the Slurm allocation; an error when there is none."),
    Setting(field="requeue", name="requeue", **_FLAG,
            help="A job that SIGUSR1 has ended (its time is up) goes back into Slurm's queue, and resumes."),
    Setting(field="slurm_poll_s", name="slurm-poll", **_SECONDS, default=30.0,
            help="Time between two questions to Slurm about the nodes (DRAIN, DOWN)."),
)  # fmt: skip

TESTING = (
    Setting(field="injections", name="inject", multiple=True, metavar="KIND:TARGET@STEP",
            help="Inject a failure in the middle of a step: kill-node:NODE@STEP, kill-rank:RANK@STEP... Repeatable; "
                 "`deadpool inject --help` lists all kinds."),
    Setting(field="drill_at", name="drill-at", type=click.IntRange(min=2), multiple=True, metavar="STEP",
            help="After so many steps all ranks go back by one step and do it again, by each way there is (own snapshot, new "
                 "process, spare, checkpoint), and what they hold is written down; repeatable. `deadpool drill` compares it."),
    Setting(field="netns", name="netns", **_FLAG,
            help="A network namespace for each node, so that it can be cut off (partition-node, heal-node); needs root."),
)  # fmt: skip

HEADINGS = {
    "Nodes and ranks": NODES_AND_RANKS,
    "Failures and timeouts": FAILURES_AND_TIMEOUTS,
    "Checkpoints": CHECKPOINTS,
    "Logs": LOGS,
    "As torchrun": TORCHRUN,
    "Slurm": SLURM,
    "Testing": TESTING,
}
SETTINGS = tuple(setting for settings in HEADINGS.values() for setting in settings)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every option to the command: the settings, and torchrun's others."""
    for heading, settings in reversed(HEADINGS.items()):
        for setting in reversed(settings):
            command = setting.option(heading)(command)
    for name, kind in torchrun.FOREIGN.items():
        variable = f"PET_{name.replace('-', '_').upper()}"
        command = click.option(f"--{name}", type=kind, envvar=variable, hidden=True)(command)
    return command
