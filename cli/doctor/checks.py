"""What `deadpool doctor` thinks of what it has found. Pure: values and texts in, findings out; probes.py has found them."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deadpool.agent.needs import nodes_kept
from deadpool.proto.config import Places
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.vault.holdings import ranks_text
from deadpool.proto.vault.layout import SLOT_NAMES, snapshot_slots

_MIB, _GIB = 1 << 20, 1 << 30
_CONTAINER_SHM_BYTES = 64 * _MIB  # what containers have unless they are told otherwise
_SOCKETS_PER_RANK = 8  # to each other rank: a few groups, two connections each, and those of generations that end
_FILES_OF_ITS_OWN = 256
_SKEW_WARN_S, _SKEW_FAIL_S = 1.0, 60.0
_SLOW_BYTES_PER_S = 100e6
_SLURMD_TIMEOUT_S = 60
_PORTS_MIN = 1000
_PLACES = 8  # of replicas, that are named


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `advice`: what to do, "" where there is nothing to be done."""

    check: str
    level: Level
    found: str
    advice: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPlan:
    """The job that is meant. `state_bytes`: of one rank: parameters, optimizer and the rest; 0: not known.

    `unique_bytes`: of it, what no other rank holds: that is replicated. `nnodes`, `spares`: how many; `places`: who keeps
    replicas. `port`: the supervisor's, 0: any.
    `hot_spares`: they are kept hot. `hot_standins`: on each node that trains.
    """

    world_size: int = 1
    nproc_per_node: int = 1
    nnodes: int = 1
    spares: int = 0
    replicas: int = 1
    places: Places = Places.RING
    state_bytes: int = 0
    unique_bytes: int = 0
    checkpoints: bool = False
    verify_every: int = 0
    port: int = 0
    hot_spares: bool = False
    hot_standins: int = 0

    @property
    def shm_bytes(self) -> int:
        """What the vault of the node takes that keeps most: slots for the snapshots of each rank that it has or may get, and two
        for each replica.
        """
        kept = nodes_kept(nnodes=self.nnodes, spares=self.spares, replicas=self.replicas, places=self.places)
        replicas_bytes = len(SLOT_NAMES) * max(kept, self.replicas) * self.unique_bytes
        return self.nproc_per_node * (self.snapshots * self.state_bytes + replicas_bytes)

    @property
    def snapshots(self) -> int:
        """Slots of each rank."""
        return snapshot_slots(checkpoints=self.checkpoints, going_back=self.verify_every > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one machine says of itself. Limits: -1 is none. `port_free`: of the plan's port. `mpi`: first lines of versions."""

    wall_s: float = 0.0
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    shm_writable: bool = True
    memlock: int = -1
    rdma: bool = False
    files_soft: int = -1
    files_hard: int = -1
    ports: tuple[int, int] = (0, 0)
    port_free: bool = True
    gpu_devices: int = 0  # that the kernel shows
    torch: Mapping[str, Any] = field(default_factory=dict)  # what the ranks' interpreter says
    mpi: Sequence[str] = ()
    memory_free_bytes: int = 0


def machine_findings(machine: Machine, plan: DoctorPlan) -> Iterator[Finding]:
    yield shm(machine, plan)
    yield files(machine, plan)
    yield memlock(machine)
    yield ports(machine, plan)
    yield gpus(machine, plan)
    yield mpi(machine)
    if plan.hot_spares or plan.hot_standins:
        yield hot(machine, plan)


def shm(machine: Machine, plan: DoctorPlan) -> Finding:
    needed, free = plan.shm_bytes, machine.shm_free_bytes
    found = f"{_size(free)} of {_size(machine.shm_bytes)} free"
    if not machine.shm_writable:
        advice = "mount -o remount,rw /dev/shm, or chmod 1777 /dev/shm: vaults lie there"
        return Finding(check="/dev/shm", level=Level.FAIL, found=f"{found}, not writable", advice=advice)
    larger = "make it larger: mount -o remount,size=SIZE /dev/shm; in a container --shm-size SIZE"
    if not plan.state_bytes:
        small = machine.shm_bytes <= _CONTAINER_SHM_BYTES
        advice = larger if small else "give --state-size to compare it with the job"
        return Finding(check="/dev/shm", level=Level.WARN if small else Level.OK, found=found, advice=advice)
    found += f", the job needs {_size(needed)} on each node"
    if needed > free:
        size = f"{math.ceil((needed + _GIB) / _GIB)}G"
        return Finding(check="/dev/shm", level=Level.FAIL, found=found, advice=larger.replace("SIZE", size))
    return Finding(check="/dev/shm", level=Level.OK if needed <= 0.9 * free else Level.WARN, found=found)


def files(machine: Machine, plan: DoctorPlan) -> Finding:
    needed = _FILES_OF_ITS_OWN + _SOCKETS_PER_RANK * plan.world_size
    soft, hard = machine.files_soft, machine.files_hard
    found = f"{_limit(soft)} open files (hard limit {_limit(hard)}), about {needed} are needed"
    if soft < 0 or soft >= needed:
        return Finding(check="nofile", level=Level.OK, found=found)
    if hard < 0 or hard >= needed:
        return Finding(check="nofile", level=Level.WARN, found=found, advice=f"ulimit -n {needed if hard < 0 else hard}")
    return Finding(check="nofile", level=Level.FAIL, found=found, advice="raise the hard limit: limits.conf, LimitNOFILE=")


def memlock(machine: Machine) -> Finding:
    found = f"{'unlimited' if machine.memlock < 0 else _size(machine.memlock)} lockable memory"
    if not machine.rdma:
        return Finding(check="memlock", level=Level.OK, found=f"{found}; no RDMA device here that would need it")
    level = Level.OK if machine.memlock < 0 else Level.FAIL
    advice = "" if machine.memlock < 0 else "RDMA pins memory: ulimit -l unlimited (limits.conf, LimitMEMLOCK=infinity)"
    return Finding(check="memlock", level=level, found=f"{found}, RDMA devices", advice=advice)


def ports(machine: Machine, plan: DoctorPlan) -> Finding:
    low, high = machine.ports
    found = f"ephemeral ports {low} to {high}" + (
        f", port {plan.port} is {'free' if machine.port_free else 'taken'}" if plan.port else ""
    )
    if not machine.port_free:
        return Finding(
            check="ports", level=Level.FAIL, found=found, advice=f"choose another --port, or end what listens on {plan.port}"
        )
    if high - low < _PORTS_MIN:
        return Finding(check="ports", level=Level.WARN, found=found, advice="widen net.ipv4.ip_local_port_range")
    return Finding(check="ports", level=Level.OK, found=found)


def gpus(machine: Machine, plan: DoctorPlan) -> Finding:
    said = machine.torch
    if not said:
        return Finding(
            check="torch", level=Level.FAIL, found="not imported", advice="install torch for the ranks' interpreter (--python)"
        )
    if said.get("error"):
        return Finding(
            check="torch",
            level=Level.FAIL,
            found=str(said["error"]),
            advice="install torch for the ranks' interpreter, or name another (--python)",
        )
    names, nccl = list(said.get("gpus", ())), said.get("nccl", "")
    found = f"torch {said.get('torch', '?')}, {len(names)} GPUs" + (f" ({names[0]}), NCCL {nccl or 'missing'}" if names else "")
    if not names and machine.gpu_devices:
        advice = "torch does not see the GPUs: a build without CUDA, or an older driver than it needs"
        return Finding(check="torch", level=Level.FAIL, found=f"{found}, {machine.gpu_devices} devices in /dev", advice=advice)
    if names and not nccl:
        return Finding(check="torch", level=Level.FAIL, found=found, advice="this build of torch has no NCCL")
    if names and plan.nproc_per_node > len(names):
        advice = f"--nproc-per-node {plan.nproc_per_node} is more than there are GPUs"
        return Finding(check="torch", level=Level.WARN, found=found, advice=advice)
    return Finding(check="torch", level=Level.OK, found=found if names else f"{found}: ranks meet through Gloo")


def replicas(job: JobStatus) -> Finding:
    """Where the replicas of a running job are, and whether nodes that fail together have each other's."""
    keepers: dict[int, list[str]] = {}
    for node in job.nodes:
        for rank in node.keeps:
            keepers.setdefault(rank, []).append(node.node_id)
    of: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(keepers):
        of.setdefault(tuple(sorted(keepers[rank])), []).append(rank)
    places = [f"of {ranks_text(ranks)} on {' and '.join(nodes)}" for nodes, ranks in of.items()]
    more = f", and so on for {len(places) - _PLACES} more" if len(places) > _PLACES else ""
    found = ", ".join(places[:_PLACES]) + more or "nowhere yet"
    members = Counter(node.domain for node in job.nodes if node.ranks and node.domain)
    unnamed = [node.node_id for node in job.nodes if node.ranks and not node.domain]
    if members and unnamed:
        lacking = f"no domain is known of {', '.join(unnamed[:_PLACES])}"
        advice = "--topology names nodes as deadpool status does, or their hosts"
        return Finding(check="replicas", level=Level.WARN, found=f"{found}; {lacking}", advice=advice)
    if len(members) > 1 and not job.domains_lost_max:
        domain, count = members.most_common(1)[0]
        lacking = f"{count} of {sum(bool(node.ranks) for node in job.nodes)} nodes are in {domain}: what is lost with it is lost"
        advice = "have no domain with more than half of the nodes that train (--topology), and checkpoints (--checkpoint-dir)"
        return Finding(check="replicas", level=Level.WARN, found=f"{found}; {lacking}", advice=advice)
    return Finding(check="replicas", level=Level.OK, found=found)


def mpi(machine: Machine) -> Finding:
    """MPI is one way for replicas to travel (--h2h mpi); TCP needs nothing."""
    return Finding(check="MPI", level=Level.OK, found="; ".join(machine.mpi) or "none: replicas travel by TCP")


def hot(machine: Machine, plan: DoctorPlan) -> Finding:
    """What a stand-in that is hot takes: a rank's memory once more, wherever that rank has it; on a spare its slots as well."""
    spare, member = plan.nproc_per_node * plan.hot_spares, min(plan.hot_standins, plan.nproc_per_node)
    names = [f"{spare} on a spare"] * bool(spare) + [f"{member} on each node that trains"] * bool(member)
    found = f"hot stand-ins: {', '.join(names)}; each takes a rank's parameters, optimizer, gradients and activations once more"
    if not plan.state_bytes:
        return Finding(check="memory", level=Level.OK, found=found, advice="give --state-size to compare it with the machine")
    needed, free = max((1 + plan.snapshots) * spare, member) * plan.state_bytes, machine.memory_free_bytes
    found += f": {_size(needed)} or more at a node, {_size(free)} of the host are free"
    if machine.gpu_devices:
        advice = "those of a node that trains share the GPU with the ranks: leave room for them" if member else ""
        return Finding(check="memory", level=Level.OK, found=f"{found} (and what is on GPUs, there)", advice=advice)
    level = Level.FAIL if needed > free else Level.WARN if 2 * needed > free else Level.OK
    return Finding(check="memory", level=level, found=found, advice="" if level is Level.OK else "keep fewer of them hot")


def clock(node: str, ahead_s: float, uncertain_s: float = 0.0) -> Finding:
    """`ahead_s`: of this machine's clock. `uncertain_s`: half the time that the question took."""
    certain_s = max(0.0, abs(ahead_s) - uncertain_s)
    found = f"{abs(ahead_s):.3f} s {'ahead' if ahead_s >= 0 else 'behind'}" + (
        f" (within {uncertain_s:.3f} s)" if uncertain_s else ""
    )
    level = Level.FAIL if certain_s > _SKEW_FAIL_S else Level.WARN if certain_s > _SKEW_WARN_S else Level.OK
    advice = (
        ""
        if level is Level.OK
        else "synchronise the clocks (chrony, ntpd): logs disagree, and a new supervisor's deadlines are late"
    )
    return Finding(check="clock", level=level, found=found, advice=advice, node=node)


def bandwidth(between: str, bytes_per_s: float, plan: DoctorPlan) -> Finding:
    found = f"{bytes_per_s / 1e9:.2f} GB/s"
    if plan.unique_bytes:
        one_s = plan.nproc_per_node * plan.replicas * plan.unique_bytes / bytes_per_s
        found += f": the replicas of one step take {one_s:.2f} s"
    slow = bytes_per_s < _SLOW_BYTES_PER_S
    advice = "slow for replicas: choose another --interface, or look at the link's speed" if slow else ""
    return Finding(check="bandwidth", level=Level.WARN if slow else Level.OK, found=found, advice=advice, node=between)


def no_connection(address: str, why: str) -> Finding:
    """This machine does not reach its own address."""
    advice = "ip link set lo up" if address.startswith("127.") else "look at the firewall, or choose another --interface"
    return Finding(check="bandwidth", level=Level.FAIL, found=f"{address} cannot be reached from here: {why}", advice=advice)


def slurm(config_text: str, script_text: str | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    """What of Slurm's settings kills the survivors of a node's loss. `config_text`: of `scontrol show config`.

    `script_text`: the batch script, None where there is none to look at.
    """
    settings = dict(re.findall(r"^(\w+)\s*=\s*(.*?)\s*$", config_text, re.MULTILINE))
    kills = settings.get("KillOnBadExit", "0") == "1"
    advice = "srun ends a whole step when one task fails: yours needs --kill-on-bad-exit=0 (deadpool-launch's has it)"
    yield Finding(
        check="KillOnBadExit",
        level=Level.WARN if kills else Level.OK,
        found=settings.get("KillOnBadExit", "?"),
        advice=advice if kills else "",
    )
    timeout = re.match(r"\d+", settings.get("SlurmdTimeout", ""))
    timeout_s = int(timeout[0]) if timeout else -1
    short = 0 < timeout_s < _SLURMD_TIMEOUT_S
    yield Finding(
        check="SlurmdTimeout",
        level=Level.WARN if short else Level.OK,
        found=settings.get("SlurmdTimeout", "?"),
        advice="a node that pauses for longer is set DOWN, and its task killed, though DeadPool would wait for it"
        if short
        else "",
    )
    if "SLURM_JOB_ID" not in environment:
        return
    advice = "say it there (#SBATCH --no-kill) or to salloc: without it Slurm ends the whole job when one node dies"
    if any(environment.get(name) for name in ("SBATCH_NO_KILL", "SLURM_NO_KILL", "SALLOC_NO_KILL")):
        yield Finding(check="--no-kill", level=Level.OK, found="set in the environment")
    elif script_text is None:
        yield Finding(check="--no-kill", level=Level.WARN, found="not known: there is no batch script", advice=advice)
    elif re.search(r"^#SBATCH\s+(.*\s)?(--no-kill|-k)(\s|$)", script_text, re.MULTILINE):
        yield Finding(check="--no-kill", level=Level.OK, found="in the batch script")
    else:
        yield Finding(check="--no-kill", level=Level.FAIL, found="not in the batch script", advice=advice)


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:.1f}G" if size_bytes >= _GIB else f"{size_bytes / _MIB:.0f}M"
