"""The job's configuration: read once at the edge, frozen, sent to every agent with Welcome."""

import dataclasses
import json
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from deadpool.host.errors import ConfigError
from deadpool.proto.faults import FAULTS, Target
from deadpool.proto.step import NO_STEP
from deadpool.proto.version import own_version, refusal, version_of

_ALWAYS_HANDLED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR2")
CHECKPOINT_SIGNAL = Signals.SIGUSR1  # to the launcher: a persistent checkpoint is written, and the job goes on


class Entry(StrEnum):
    SCRIPT = "script"  # a Python file
    MODULE = "module"  # python -m
    PROGRAM = "program"  # any executable (--no-python)


class OnExhausted(StrEnum):
    WAIT = "wait"  # no spare left: wait for a node to come back
    ABORT = "abort"  # no spare left: end the job, exit 1


class OnLoss(StrEnum):
    SWAP = "swap"  # only what was lost gets a new process; the others keep theirs
    RESTART = "restart"  # all ranks get new processes, and their states from the hosts' memory
    EXCLUDE = "exclude"  # the others go on without the ranks of a lost node, until a node comes


class Readiness(StrEnum):
    COLD = "cold"  # a spare has imported torch, no more
    WARM = "warm"  # it has run the script up to join(), once for each rank of a node
    HOT = "hot"  # it has also built and rehearsed a node's ranks, beside those that play them


class Places(StrEnum):
    """Where replicas are kept."""

    RING = "ring"  # by the nodes that train, each for another one
    SPARES = "spares"  # by the spares, as many as there are; a swap then finds them in the spare's own memory
    BOTH = "both"  # in the ring, and once more by a spare


class Transport(StrEnum):
    TCP = "tcp"
    MPI = "mpi"  # by pairs of processes beside the job; by TCP where and while there is none
    OFF = "off"  # there are no replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One failure to inject: `--inject KIND:TARGET@STEP`. step NO_STEP: immediately."""

    injection_id: int
    kind: str
    target: int
    step: int = NO_STEP


INJECTION_KINDS = tuple(FAULTS)


def parse_injection(text: str, injection_id: int) -> Injection:
    """Returns the injection that `KIND:TARGET@STEP` describes; ConfigError names the part that is wrong.

    Kinds without a target take 0.
    """
    head, at, step = text.partition("@")
    kind, colon, target = head.partition(":")
    if kind not in INJECTION_KINDS:
        raise ConfigError(f"--inject {text}: unknown kind {kind!r}; known: {', '.join(INJECTION_KINDS)}")
    if not (colon and at and target.isdecimal() and step.isdecimal()):
        raise ConfigError(f"--inject {text}: expected KIND:TARGET@STEP with numbers for TARGET and STEP, as kill-rank:3@15")
    injection = Injection(injection_id=injection_id, kind=kind, target=int(target), step=int(step))
    if problem := not_possible(injection.kind, injection.target, injection.step):
        raise ConfigError(f"--inject {text}: {problem}")
    return injection


def not_possible(kind: str, target: int, step: int) -> str:
    """Returns why no job can have this known kind injected so, "" when it can."""
    if FAULTS[kind].target is Target.NONE and target != 0:
        return f"{kind} has no target: write 0"
    if step != NO_STEP and not FAULTS[kind].at_step:
        return f"{kind} cannot wait for a step, its target makes none: ask for it while the job runs (deadpool inject)"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobConfig:
    """Everything that supervisor and agents need to know of a job. Seconds unless the name says otherwise."""

    job_id: str
    nnodes: int  # where a range is given, the most
    nproc_per_node: int
    min_nnodes: int = 0  # scripts without hooks go on with so few when no spare is left; 0: never with fewer than nnodes
    spares: int = 0
    replicas: int = 1  # copies of each unique shard on other nodes; each survives one more node lost at the same time
    h2h: Transport = Transport.TCP  # how replicas travel
    place_replicas: Places = Places.RING
    topology: tuple[tuple[str, str], ...] = ()  # (node or host, domain): nodes of one domain fail together
    replica_connections: int = 0  # that carry one rank's replicas to one holder by TCP; 0: auto, more where they make it faster
    command: tuple[str, ...]  # script (or module, program) and its arguments
    entry: Entry = Entry.SCRIPT
    python: str  # interpreter for the ranks
    start_method: str = "forkserver"  # "forkserver": fork from a process that has imported torch; "spawn": a fresh interpreter
    log_dir: str
    journal: str = ""  # folder that all nodes share: any of them can then start the supervisor, which has no home of its own
    log_bytes_max: int = 256 << 20  # of one log file; then it becomes FILE.1, and what that was is gone
    redirects: str = "0"  # torchrun's STREAMS (proto/streams.py): to files, not to the console
    tee: str = "0"  # to files and to the console
    local_ranks_filter: tuple[int, ...] = ()  # whose lines the console shows; (): all
    stdout_filters: tuple[str, ...] = ()  # lines of teed output that hold one of these words go to a file of their own as well
    stderr_filters: tuple[str, ...] = ()
    role: str = "default"
    run_id: str = ""  # TORCHELASTIC_RUN_ID; "": job_id
    virtual_local_rank: bool = False  # every rank is local rank 0, and sees its own GPU only
    numa_binding: str = ""  # torch.numa's mode: ranks run on CPUs near their GPU
    signals: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # that end the job; ranks get the very one that the launcher got
    standalone: bool = True
    together: bool = False  # one launcher starts all nodes, wherever they are: who becomes a spare does not depend on haste
    netns: bool = False  # standalone: a network namespace for each node
    heartbeat_interval_s: float | None = None  # None: a third of the timeout, at most 1 s (heartbeat_every_s)
    heartbeat_timeout_s: float = 3.0
    tls: bool = False  # agents, supervisor and whoever asks it speak TLS (proto/doors.py)
    relay_above: int = 1000  # more nodes than that: one in 64 speaks for the others of its group
    hang_timeout_s: float | None = None  # no rank's step advances for so long; None: learned from the steps, at least 30 s
    failure_rules: str = ""  # TOML: rules that come before the shipped ones (supervisor/failures/failure_rules.toml)
    on_exhausted: OnExhausted = OnExhausted.WAIT
    on_loss: OnLoss = OnLoss.SWAP
    spare_readiness: Readiness = Readiness.WARM
    hot_standins: int = 0  # on each member, of its own ranks: for a lost process; they take a rank's memory each
    swap_stragglers: bool = False  # a node with a persistent straggler is drained
    max_restarts: int = 0  # scripts without hooks: restarts of all workers
    max_recoveries_without_progress: int = 5
    broken_collective_grace_s: float = 0.5  # a broken collective with nobody dead: wait this long for a root cause, then re-form
    quiesce_timeout_s: float = 30.0  # a survivor that has not left its step by then is killed and comes back from the vault
    join_timeout_s: float = 600.0  # a joiner's construction and rehearsal
    reform_timeout_s: float = 30.0  # opening all groups again; a rank gives up a little earlier, and says why
    restore_timeout_s: float = 600.0  # moving the states to where they belong; again for the first step
    stop_grace_s: float = 3.0  # SIGTERM to SIGKILL; a stopped job is gone within 5 s even if ranks do not listen
    snapshot_every: int = 0  # steps from one protected state to the next; 0: auto, as often as costs the training nothing
    verify_every: int = 0  # steps; 0: replicated state is not compared across its holders
    checkpoint_dir: str = ""  # "": no persistent checkpoints; a folder that all nodes see
    checkpoint_every: int = 0  # steps; 0: only at the end of the job, however it ends
    keep: int = 2  # complete checkpoints; older ones are removed
    resume: str = "auto"  # "auto": from the newest complete checkpoint in checkpoint_dir; "never"; or a checkpoint's folder
    checkpoint_timeout_s: float = 60.0  # at the job's end: longer, and it ends without a last checkpoint
    injections: tuple[Injection, ...] = ()
    drill_at: tuple[int, ...] = ()  # boundaries: after so many steps all go back by one step, by each way there is
    metrics_port: int | None = None  # the supervisor's, for Prometheus; agents take the first free one after it
    drill_only: bool = False  # the job ends once they have been drilled

    @property
    def fewest_nodes(self) -> int:
        return self.min_nnodes or self.nnodes

    @property
    def end_timeout_s(self) -> float:
        """From the order to stop until a node has ended: its ranks, and a last checkpoint."""
        return self.stop_grace_s + (self.checkpoint_timeout_s if self.checkpoint_dir else 0.0)

    @property
    def world_size(self) -> int:
        """Ranks of the whole job; a job with a range of nodes may run with fewer."""
        return self.nnodes * self.nproc_per_node

    @property
    def heartbeat_every_s(self) -> float:
        return self.heartbeat_interval_s or min(1.0, self.heartbeat_timeout_s / 3)


def stop_signals(config: JobConfig) -> tuple[Signals, ...]:
    """Returns the signals that end the job: those that would end the launcher anyhow, and those that were asked for.

    CHECKPOINT_SIGNAL is not among them where it has something else to do and was not asked for.
    """
    always = _ALWAYS_HANDLED if config.checkpoint_dir else (*_ALWAYS_HANDLED, CHECKPOINT_SIGNAL.name)
    names = dict.fromkeys((*always, *(name.strip() for name in config.signals.split(","))))
    return tuple(Signals[name] for name in names)


def to_json(config: JobConfig) -> str:
    return json.dumps({"version": dataclasses.asdict(own_version()), **dataclasses.asdict(config)})


def from_json(text: str) -> JobConfig:
    """Returns the configuration that `to_json` wrote; ConfigError when that was another version's."""
    fields = json.loads(text)
    if reason := refusal("whoever started the job", version_of(fields.pop("version", None))):
        raise ConfigError(reason)
    for name in ("command", "local_ranks_filter", "stdout_filters", "stderr_filters", "drill_at"):
        fields[name] = tuple(fields[name])
    fields["entry"] = Entry(fields["entry"])
    fields["on_exhausted"] = OnExhausted(fields["on_exhausted"])
    fields["on_loss"] = OnLoss(fields["on_loss"])
    fields["spare_readiness"] = Readiness(fields["spare_readiness"])
    fields["h2h"] = Transport(fields["h2h"])
    fields["place_replicas"] = Places(fields["place_replicas"])
    fields["topology"] = tuple((node, domain) for node, domain in fields["topology"])
    fields["injections"] = tuple(Injection(**injection) for injection in fields["injections"])
    return JobConfig(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a rank needs to know of the above; it comes in its environment (DEADPOOL_KEEPING)."""

    job_id: str = ""
    snapshot_every: int = 0
    verify_every: int = 0
    checkpoint_dir: str = ""
    checkpoint_every: int = 0
    resume: str = "never"
    reform_timeout_s: float = 30.0
    drill_at: tuple[int, ...] = ()
    log_dir: str = ""
    h2h: Transport = Transport.TCP
    replicas: int = 1
    replica_connections: int = 1


def keeping_to_json(config: JobConfig) -> str:
    return json.dumps({field.name: getattr(config, field.name) for field in dataclasses.fields(Keeping)})


def keeping_from_json(text: str) -> Keeping:
    fields = json.loads(text)
    fields["drill_at"] = tuple(fields.get("drill_at", ()))
    fields["h2h"] = Transport(fields.get("h2h", Transport.TCP))
    return Keeping(**fields)
