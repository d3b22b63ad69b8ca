"""What Slurm says, as values: its environment and its commands' text in, values and command lines out. Nothing is run here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deadpool.host.errors import ConfigError

_PIECE = re.compile(r"([^,\[]*(?:\[[^\]]*\][^,\[]*)*)(?:,|$)")  # up to a comma outside of brackets
_BRACKET = re.compile(r"\[([^\]]*)\]")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_FIELD = re.compile(r"(?:^| )(NodeName|State)=(\S+)")
_PLACES = re.compile(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)")
_GPUS = re.compile(r"gpu[^,(]*")
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\]]*\])?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes that Slurm has given us, in its order, with the CPUs that we have on each. `name`: the Slurm job's."""

    job_id: str
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]
    name: str = ""
    restarts: int = 0  # times that Slurm has requeued it


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a step: its node, its number in the step, and the address of whoever started the step."""

    node: str
    number: int
    launched_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """`down`: Slurm runs nothing on it any more. `drains`: it is to be left. `reason`: an administrator's, or Slurm's."""

    down: bool
    drains: bool
    text: str
    reason: str = ""


def allocation_of(environment: Mapping[str, str]) -> Allocation | None:
    """Returns the allocation that this process is in, None outside of any.

    ConfigError where the launcher cannot start its nodes: it was itself started once for each task, or the nodes differ.
    """
    job_id = environment.get("SLURM_JOB_ID", "")
    if not job_id:
        return None
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks != "1":
        raise ConfigError(
            f"srun has started deadpool-launch {tasks} times: call it once, without srun; it starts its nodes itself"
        )
    if _number(environment, "SLURM_HET_SIZE", 1) > 1:
        raise ConfigError(f"Slurm job {job_id} is heterogeneous: nodes of several types cannot take each other's place")
    listed = environment.get("SLURM_JOB_NODELIST", "")
    try:
        nodes = expand(listed)
    except ValueError as error:
        raise ConfigError(f"SLURM_JOB_NODELIST={listed}: no list of nodes; without Slurm, unset SLURM_JOB_ID") from error
    cpus = counts(environment.get("SLURM_JOB_CPUS_PER_NODE", f"1(x{len(nodes)})"))
    if not nodes or len(cpus) != len(nodes):
        raise ConfigError(
            f"Slurm job {job_id}: SLURM_JOB_NODELIST and SLURM_JOB_CPUS_PER_NODE do not say which nodes it has; "
            "without Slurm, unset SLURM_JOB_ID"
        )
    if len(set(cpus)) > 1:
        raise ConfigError(
            f"Slurm job {job_id}: the nodes have different numbers of CPUs ({environment['SLURM_JOB_CPUS_PER_NODE']}) and cannot "
            "take each other's place; ask for --ntasks-per-node=1 with --exclusive or --cpus-per-task"
        )
    return Allocation(
        job_id=job_id,
        nodes=nodes,
        cpus=cpus,
        name=environment.get("SLURM_JOB_NAME", ""),
        restarts=_number(environment, "SLURM_RESTART_COUNT", 0),
    )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "") or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}={text}: Slurm would set a number; without Slurm, unset SLURM_JOB_ID")
    return int(text)


def task_of(environment: Mapping[str, str]) -> Task:
    """Returns the task that this process is; ConfigError when it was not started by srun."""
    if "SLURM_STEP_ID" not in environment:
        raise ConfigError("not a task of a Slurm step (SLURM_STEP_ID is not set): start this with srun")
    return Task(
        node=environment["SLURMD_NODENAME"],
        number=int(environment["SLURM_PROCID"]),
        launched_from=environment["SLURM_LAUNCH_NODE_IPADDR"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """How many of the allocation's nodes train, and how many wait. `at_least`: with fewer the job does not go on."""

    at_least: int
    nnodes: int
    spares: int


def seats(allocation: Allocation, *, nnodes: tuple[int, int] | None, spares: int | None) -> Seats:
    """Returns who trains and who waits; ConfigError when the allocation is too small.

    `nnodes`: (least, most). None: not asked for. Neither: all train. Only one: the rest is the other. Both: what is left over
    stays idle.
    """
    there = len(allocation.nodes)
    if spares is not None and spares >= there:
        raise ConfigError(f"--spares {spares}: Slurm job {allocation.job_id} has {there} nodes, and at least one must train")
    if nnodes is None:
        training = there - (spares or 0)
        return Seats(at_least=training, nnodes=training, spares=spares or 0)
    least, most = nnodes
    if least + (spares or 0) > there:
        asked = f"--nnodes {least}" + (f" and --spares {spares}" if spares else "")
        raise ConfigError(f"{asked}: {least + (spares or 0)} nodes, but Slurm job {allocation.job_id} has {there}")
    training = min(most, there - (spares or 0))
    return Seats(at_least=least, nnodes=training, spares=there - training if spares is None else spares)


def task_epilog(job: str) -> str:
    """Returns the script that Slurm runs on a node after our task: of one that was killed with its agent, the vault is left."""
    return f"""#!/bin/sh
vault=/dev/shm/deadpool-{job}-$SLURMD_NODENAME
[ -O "$vault" ] && exec flock --timeout 3 "$vault/lock" rm -rf "$vault"
exit 0
"""


def step_name(job: str) -> str:
    """Returns the name of the step with the nodes of that job: there may be others in the allocation."""
    return f"deadpool-{job}"


def step_command(allocation: Allocation, nodes: Sequence[str], command: Sequence[str], *, name: str, epilog: str) -> list[str]:
    """Returns the one srun of a job: a task on each of these nodes, which live on when others die.

    Only with --no-kill (here and in the batch script) and without --kill-on-bad-exit does a step outlive a node. The task may use
    all that the job has on its node: no -c, which would be a limit, and no binding of its own.
    """
    count = str(len(nodes))
    return [
        "srun",
        f"--jobid={allocation.job_id}",
        f"--nodes={count}",
        f"--ntasks={count}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        f"--job-name={name}",
        f"--task-epilog={epilog}",
        "--no-kill",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--mpi=none",
        "--cpu-bind=none",
        "--export=ALL",
        "--input=none",
        "--overlap",
        *command,
    ]


def steps_command(allocation: Allocation) -> list[str]:
    """Returns what lists the allocation's steps, for `steps_of`."""
    return ["squeue", "--steps", f"--jobs={allocation.job_id}", "--noheader", "--format=%i %j"]


def steps_of(text: str, *, name: str) -> list[str]:
    """Returns the ids (JOB.STEP) of the steps with that name from what `steps_command` prints."""
    pairs = [line.split(None, 1) for line in text.splitlines()]
    return [pair[0] for pair in pairs if len(pair) == 2 and pair[1].strip() == name]


def job_command(allocation: Allocation) -> list[str]:
    """Returns what asks for what the job has on each node, for `check_gpus`."""
    return ["scontrol", "--oneliner", "--details", "show", "job", allocation.job_id]


def check_gpus(allocation: Allocation, text: str) -> None:
    """Raises ConfigError when the nodes' GPUs are not all the same. `text`: what `job_command` prints; "": nobody knows."""
    found: dict[str, list[str]] = {}
    for places, gres in _PLACES.findall(text):
        found.setdefault(" and ".join(_GPUS.findall(gres)) or "none", []).append(places)
    if len(found) > 1:
        told = "; ".join(f"{','.join(places)}: {gpus}" for gpus, places in found.items())
        raise ConfigError(
            f"Slurm job {allocation.job_id}: the nodes have different GPUs ({told}) and cannot take each other's place; ask for "
            "one type and number on each with --gpus-per-node=TYPE:NUMBER"
        )


def nodes_command(nodes: Sequence[str]) -> list[str]:
    """Returns what asks for the nodes' states, for `node_states`."""
    return ["scontrol", "--oneliner", "show", "node", ",".join(nodes)]


def node_states(text: str) -> dict[str, NodeState]:
    """Returns the state of each node from what `nodes_command` prints; what is no line about a node is passed over."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "NodeName" not in fields or "State" not in fields:
            continue
        flags = {flag.rstrip("*~#!%$@^-").upper() for flag in fields["State"].split("+")}
        reason = _REASON.search(line)
        found[fields["NodeName"]] = NodeState(
            down=bool(flags & {"DOWN", "POWERED_DOWN", "POWERING_DOWN"}),
            drains=bool(flags & {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"}),
            text=fields["State"],
            reason=reason[1].strip() if reason else "",
        )
    return found


def expand(hostlist: str) -> tuple[str, ...]:
    """Returns the names of `n[1-3,07],login`, in order."""
    return tuple(name for piece in _PIECE.findall(hostlist) if piece for name in _expand_piece(piece))


def counts(text: str) -> tuple[int, ...]:
    """Returns the numbers of `2(x3),4`: 2, 2, 2, 4."""
    return tuple(int(number) for number, times in _COUNT.findall(text) for _ in range(int(times or 1)))


def _expand_piece(piece: str) -> list[str]:
    bracket = _BRACKET.search(piece)
    if bracket is None:
        return [piece]
    rest = _expand_piece(piece[bracket.end() :])
    return [piece[: bracket.start()] + number + tail for number in _numbers(bracket[1]) for tail in rest]


def _numbers(text: str) -> list[str]:
    found = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            found.append(first)
        else:
            found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
