"""From the command line and what is around it to a plan: values in, values out.

Whether what the plan names is there, cli/checks.py looks.
"""

import posixpath
import re
from dataclasses import fields
from typing import Any

from deadpool.cli.plan import torchrun_options
from deadpool.cli.plan.consistency import check_consistency, shortfalls
from deadpool.cli.plan.environment import LaunchEnvironment
from deadpool.cli.plan.options import LaunchOptions
from deadpool.cli.plan.plan import ByHand, InAllocation, LaunchPlan, OverSsh, Standalone, Way
from deadpool.deploy.slurm.allocation import Seats, allocation_of, seats
from deadpool.host.errors import ConfigError
from deadpool.proto.config import Entry, JobConfig, OnExhausted, OnLoss, Places, Readiness, Transport, parse_injection


def resolve(options: LaunchOptions, environment: LaunchEnvironment) -> LaunchPlan:
    """Returns what is to be started, and how. ConfigError names what cannot be used, or not together."""
    _check_alone(environment)
    way = _way(options, environment)
    chosen = _seats(options, way)
    torchrun_options.check_foreign(options.torchrun, machines=chosen.nnodes)
    python = _interpreter(environment)
    job_id = options.job["job_id"] or _job_id(options, way, environment)
    transport = Transport(options.job["h2h"])
    config = JobConfig(
        **_taken_as_they_are(options),
        **_files(options, job_id, environment.folder),
        job_id=job_id,
        run_id=torchrun_options.run_id(options.torchrun, standalone=options.all_here),
        nnodes=chosen.nnodes,
        min_nnodes=chosen.at_least,
        spares=chosen.spares,
        nproc_per_node=_ranks(options.job["nproc_per_node"], python, environment),
        command=(options.script, *options.arguments),
        entry=_entry(options),
        python=python,
        start_method="forkserver" if options.job["start_method"] == "fork" else options.job["start_method"],
        signals=_signals(options, way),
        on_exhausted=OnExhausted(options.job["on_exhausted"]),
        on_loss=OnLoss(options.job["on_loss"]),
        spare_readiness=Readiness(options.job["spare_readiness"]),
        h2h=transport,
        place_replicas=Places(options.job["place_replicas"]),
        replicas=0 if transport is Transport.OFF else options.job["replicas"],
        standalone=isinstance(way, Standalone),
        together=isinstance(way, OverSsh | InAllocation),
        injections=tuple(parse_injection(text, number) for number, text in enumerate(options.job["injections"], 1)),
    )
    check_consistency(config, options.given)
    return LaunchPlan(
        config=config,
        way=way,
        remarks=(
            *torchrun_options.notes(options.torchrun, machines=config.nnodes, standalone=options.all_here),
            *shortfalls(config, options.given),
        ),
        port=_port(options, way),
        dashboard=options.dashboard,
        summary_json=options.summary_json and posixpath.join(environment.folder, options.summary_json),
        interface=options.interface,
        preflight=options.preflight,
    )


def _check_alone(environment: LaunchEnvironment) -> None:
    """ConfigError when another launcher has started this one as one of several ranks: each of them would start a job."""
    ranks = environment.variables.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in environment.variables and ranks != "1":
        raise ConfigError(
            f"WORLD_SIZE={ranks}: torchrun or accelerate launch has started deadpool-launch {ranks} times, and each would start "
            "all ranks; have it start one (accelerate launch --num_processes 1), or unset WORLD_SIZE"
        )


# ---------------------------------------------------------------- how the nodes are started


def _way(options: LaunchOptions, environment: LaunchEnvironment) -> Way:
    in_allocation = None if options.all_here else _allocation_way(options, environment)
    if options.hosts:
        if options.all_here or in_allocation is not None:
            other = "--standalone" if options.all_here else "--slurm" if options.slurm or options.requeue else "an allocation"
            raise ConfigError(f"--hosts: does not go with {other}: choose one")
        if options.job["journal"]:
            raise ConfigError("--hosts: the launcher is the supervisor's home; with --journal start the job on each machine")
        return OverSsh(options.hosts)
    if in_allocation is not None:
        return in_allocation
    if options.all_here or options.job["nnodes"][1] == 1:
        return Standalone()
    rendezvous = environment.find_rendezvous(options.torchrun, options.interface)
    return Standalone() if rendezvous is None else ByHand(rendezvous)


def _allocation_way(options: LaunchOptions, environment: LaunchEnvironment) -> InAllocation | None:
    wanted = options.slurm or options.requeue
    if not wanted and not options.torchrun.keys().isdisjoint(torchrun_options.MEETING):
        return None  # whoever says where to meet has started the launcher on each machine
    allocation = allocation_of(environment.variables)
    if allocation is None:
        if wanted:
            raise ConfigError("no Slurm allocation here (SLURM_JOB_ID is not set): use sbatch or salloc, or --standalone")
        return None
    if environment.find_program("srun") is None:
        raise ConfigError(
            f"SLURM_JOB_ID={allocation.job_id} says that this is a Slurm allocation, but srun is not in PATH; with --standalone "
            "all nodes are on this machine"
        )
    if options.job["netns"]:
        raise ConfigError("--netns: the nodes of a Slurm allocation have networks of their own; it goes with --standalone")
    return InAllocation(allocation=allocation, poll_s=options.slurm_poll_s, requeue=options.requeue)


def _seats(options: LaunchOptions, way: Way) -> Seats:
    """Returns who trains and who waits."""
    (least, most), spares = options.job["nnodes"], options.job["spares"]
    match way:
        case InAllocation(allocation=allocation):
            return seats(
                allocation,
                nnodes=(least, most) if "nnodes" in options.given else None,
                spares=spares if "spares" in options.given else None,
            )
        case OverSsh(hosts=hosts):
            if "nnodes" not in options.given:
                least = most = len(hosts) - spares
            if least + spares > len(hosts) or least < 1:
                raise ConfigError(f"--hosts: {len(hosts)} hosts are too few for --nnodes {max(least, 1)} and --spares {spares}")
            training = min(most, len(hosts) - spares)
            return Seats(at_least=least, nnodes=training, spares=len(hosts) - training)
        case Standalone() | ByHand():
            return Seats(at_least=least, nnodes=most, spares=spares)


def _port(options: LaunchOptions, way: Way) -> int | None:
    if options.port is not None and options.port == options.job["metrics_port"]:
        raise ConfigError(f"--port {options.port} and --metrics-port {options.port}: must differ")
    if not isinstance(way, ByHand):
        return options.port
    if options.port not in (None, way.rendezvous.port):
        raise ConfigError(f"--port {options.port}: the supervisor listens where the machines meet, at {way.rendezvous.given}")
    return way.rendezvous.port


# ---------------------------------------------------------------- the job


def _taken_as_they_are(options: LaunchOptions) -> dict[str, Any]:
    settled = {
        "job_id", "nnodes", "spares", "nproc_per_node", "start_method", "signals", "on_exhausted", "on_loss",
        "spare_readiness", "injections", "h2h", "replicas", "place_replicas", "log_dir", "journal", "checkpoint_dir", "resume",
    }  # fmt: skip
    return {field.name: options.job[field.name] for field in fields(JobConfig) if field.name in options.job.keys() - settled}


def _files(options: LaunchOptions, job_id: str, folder: str) -> dict[str, Any]:
    """Returns the fields that are paths, as absolute ones."""
    job = options.job
    return {
        "log_dir": posixpath.join(folder, job["log_dir"] or f"logs/{job_id}"),
        **{name: posixpath.join(folder, job[name]) if job[name] else "" for name in ("journal", "checkpoint_dir")},
        "resume": job["resume"] if job["resume"] in ("auto", "never") else posixpath.join(folder, job["resume"]),
    }


def _entry(options: LaunchOptions) -> Entry:
    if options.module and options.no_python:
        raise ConfigError("-m and --no-python: choose one")
    if options.run_path:
        return Entry.SCRIPT
    return Entry.MODULE if options.module else Entry.PROGRAM if options.no_python else Entry.SCRIPT


def _interpreter(environment: LaunchEnvironment) -> str:
    """Returns the ranks' interpreter: $PYTHON_EXEC, as for torchrun, else this one."""
    named = environment.variables.get("PYTHON_EXEC", environment.python)
    python = environment.find_program(named)
    if python is None:
        raise ConfigError(f"PYTHON_EXEC={named}: not found, or not executable")
    return posixpath.join(environment.folder, python)


def _ranks(asked: int | str, python: str, environment: LaunchEnvironment) -> int:
    return environment.count_devices(asked, python) if isinstance(asked, str) else asked


def _signals(options: LaunchOptions, way: Way) -> str:
    """In an allocation also the one that --signal=B:USR1@... sends before the time is up, unless the user names some."""
    signals: str = options.job["signals"]
    return f"{signals},SIGUSR1" if isinstance(way, InAllocation) and "signals" not in options.given else signals


def _job_id(options: LaunchOptions, way: Way, environment: LaunchEnvironment) -> str:
    """Returns the job's name where none is given; of a job that is started by hand one that all machines come to."""
    name = (
        re.sub(r"[^A-Za-z0-9_-]+", "-", posixpath.splitext(posixpath.basename(options.script.rstrip("/")))[0]).strip("-_")[:24]
        or "job"
    )
    match way:
        case InAllocation(allocation=allocation):
            return f"{name}-{allocation.job_id}"
        case ByHand(rendezvous=rendezvous):
            named = re.sub(r"[^A-Za-z0-9._-]+", "-", str(options.torchrun.get("rdzv-id", ""))).strip("-._")[:48]
            return named or f"{name}-{rendezvous.port}"
        case Standalone() | OverSsh():
            return f"{name}-{environment.suffix}"
