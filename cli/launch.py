"""deadpool-launch: starts a training script on nodes, as torchrun does, and keeps it alive."""

import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from deadpool.cli.exit_codes import guarded, say
from deadpool.cli.nodes.netns import check_possible
from deadpool.cli.options import torchrun
from deadpool.cli.options.checkpoints import settle_checkpoints
from deadpool.cli.options.settings import CONTEXT_SETTINGS, SETTINGS
from deadpool.cli.options.types import host_names
from deadpool.deploy.slurm.allocation import Allocation, allocation_of, seats
from deadpool.deploy.slurm.srun_options import is_of_srun
from deadpool.host.errors import ConfigError
from deadpool.host.script import is_runnable
from deadpool.proto.config import Entry, Injection, JobConfig, OnExhausted, parse_injection
from deadpool.proto.faults import FAULTS, Target
from deadpool.proto.secret import read_private

if TYPE_CHECKING:
    from deadpool.cli.nodes.rendezvous import Meeting

OF_THE_LAUNCHER = (
    "summary_json",
    "port",
    "metrics_port",
    "slurm",
    "requeue",
    "interface",
    "slurm_poll",
    "preflight",
    "hosts",
)  # parameters that say nothing of the job


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 done, 1 the job failed, 2 usage or configuration, 128+n on signals."""
    return guarded(lambda: _launched(list(arguments)))


def _launched(arguments: list[str]) -> Any:
    try:
        return launch.main(arguments, prog_name="deadpool-launch", standalone_mode=False)
    except click.NoSuchOption as error:
        if is_of_srun(error.option_name):
            raise ConfigError(f"{error.option_name} is an option of sbatch and srun: put it there (#SBATCH, salloc)") from error
        raise


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    for setting in reversed(SETTINGS):
        command = setting.option()(command)
    for name, kind in torchrun.FOREIGN.items():
        variable = f"PET_{name.replace('-', '_').upper()}"
        command = click.option(f"--{name}", type=kind, envvar=variable, hidden=True)(command)
    return command


@click.command(context_settings=CONTEXT_SETTINGS)
@with_settings
@click.option("--standalone", is_flag=True, envvar="PET_STANDALONE",
              help="All nodes on this machine, each a process tree of its own; the default where none are named.")  # fmt: skip
@click.option("--hosts", type=host_names, default=(), metavar="A,B,...",
              help="Start a node on each of these machines, over ssh; those that are more than --nnodes are spares.")  # fmt: skip
@click.option("--slurm", is_flag=True, help="Nodes are those of the Slurm allocation; the default inside of one.")
@click.option("--requeue", is_flag=True, help="Slurm: a job that SIGUSR1 has ended (its time is up) is put back into the queue.")
@click.option("--interface", metavar="NAME", help="The network interface by which nodes reach each other.")
@click.option("--slurm-poll", type=click.FloatRange(min=0, min_open=True), default=30.0, hidden=True,
              help="Seconds between two questions to Slurm about the nodes.")  # fmt: skip
@click.option("--preflight", is_flag=True, help="First look for what would trouble the job here (deadpool doctor).")
@click.option("--netns", is_flag=True, help="A network namespace for each node, so that it can be cut off; needs root.")
@click.option("-m", "--module", is_flag=True, envvar="PET_MODULE", help="SCRIPT is a module's name, as for python -m.")
@click.option("--no-python", is_flag=True, envvar="PET_NO_PYTHON", help="SCRIPT is a program, not a Python file.")
@click.option("--run-path", is_flag=True, envvar="PET_RUN_PATH", help="SCRIPT is a Python file, whatever --no-python says.")
@click.option("--inject", "injections", multiple=True, metavar="KIND:TARGET@STEP",
              help="Inject a failure in the middle of a step: kill-node:NODE@STEP, kill-rank:RANK@STEP... Repeatable; "
                   "`deadpool inject --help` lists all kinds.")  # fmt: skip
@click.option("--failure-rules", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="TOML: which failures are transient, permanent or fatal; its rules come before the shipped ones.")  # fmt: skip
@click.option("--summary-json", type=click.Path(dir_okay=False, path_type=Path), help="Write a summary of the job there.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="The supervisor's port.  [default: any free one]")
@click.option("--metrics-port", type=click.IntRange(1, 65535), metavar="PORT",
              help="Prometheus metrics at http://HOST:PORT/metrics, where the supervisor listens.")  # fmt: skip
@click.version_option(package_name="deadpool-train")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch(
    standalone: bool,
    hosts: tuple[str, ...],
    slurm: bool,
    requeue: bool,
    interface: str | None,
    slurm_poll: float,
    preflight: bool,
    summary_json: Path | None,
    port: int | None,
    metrics_port: int | None,
    **options: Any,
) -> int:
    """Run SCRIPT with ARGS on nodes x ranks, with spare nodes that take the place of dead ones."""
    allocation = None if standalone else find_allocation(options, wanted=slurm or requeue)
    if allocation is not None:
        settle_seats(options, allocation)
    if hosts:
        if standalone or allocation is not None:
            raise ConfigError(f"--hosts: goes neither with --standalone nor with {'--slurm' if allocation else 'an allocation'}")
        settle_hosts(options, hosts)
    meeting = None if standalone or hosts or allocation is not None else find_meeting(options, interface)
    config, remarks = job_config(options, standalone=standalone)
    if allocation is not None or hosts:
        config = replace(config, standalone=False, together=True)
    elif meeting is not None:
        config = replace(config, standalone=False)
        if port is not None and port != meeting.port:
            raise ConfigError(f"--port {port}: the supervisor listens where the machines meet, at {meeting.given}")
        port = None
    own: list[str] = [] if port is None else ["--port", str(port)]  # the supervisor's alone
    own += [] if metrics_port is None else ["--metrics-port", str(metrics_port)]
    if summary_json is not None:
        summary_json = summary_json.absolute()
        own += ["--summary-json", str(summary_json)]
        if not os.access(summary_json.parent, os.W_OK):
            raise ConfigError(f"--summary-json {summary_json}: cannot write to {summary_json.parent}")
    if meeting is not None:
        from deadpool.cli.nodes import by_hand

        for remark in remarks:
            say(remark)
        return by_hand.run(config, meeting, own, interface=interface, say=say)
    # What only a valid command line needs is imported here: errors are instant.
    from deadpool.cli.launcher.children import Children
    from deadpool.cli.launcher.job import WARNINGS, LaunchedJob, Nodes
    from deadpool.cli.launcher.job_dirs import job_folder, log_folder
    from deadpool.cli.nodes.slurm import AllocationNodes, put_back
    from deadpool.cli.nodes.standalone import StandaloneNodes

    for remark in remarks:
        say(remark)
    if preflight:
        from deadpool.cli.doctor import command

        command.preflight(config, port=port, interface=interface, say=say)
    children = Children()
    with log_folder(Path(config.log_dir)), job_folder(config) as folder:
        nodes: Nodes
        if hosts:
            from deadpool.cli.nodes.hosts import HostNodes, launcher_host

            host, free = launcher_host(hosts, interface)
            own += [] if port is not None else ["--port", str(free)]
            token = read_private(folder / "token")
            nodes = HostNodes(config, children, hosts, token, host=host, port=port or free, interface=interface, say=say)
        elif allocation is None:
            nodes = StandaloneNodes(config, folder, children)
        else:
            nodes = AllocationNodes(config, folder, children, allocation, say, interface=interface, poll_s=slurm_poll)
        greeting = f"job {config.job_id}: {size(config)}; logs in {config.log_dir}"
        exit_code = LaunchedJob(config, folder, say, own, nodes, children).run(greeting)
    say(f"job {config.job_id}: {'done' if exit_code == 0 else f'ended with exit code {exit_code}'}")
    if allocation is not None and requeue and exit_code - 128 in WARNINGS:
        put_back(allocation, say)
    return exit_code


def find_allocation(options: dict[str, Any], *, wanted: bool) -> Allocation | None:
    """Returns the Slurm allocation whose nodes are the job's, None when they are not.

    ConfigError when there should be one, or it cannot be used.
    """
    meeting = [name for name in torchrun.MEETING if options[name.replace("-", "_")] is not None]
    if meeting and not wanted:
        return None  # whoever says where to meet has started the launcher on each machine
    allocation = allocation_of(os.environ)
    if allocation is None:
        if wanted:
            raise ConfigError("no Slurm allocation here (SLURM_JOB_ID is not set): use sbatch or salloc, or --standalone")
        return None
    if shutil.which("srun") is None:
        raise ConfigError("this is a Slurm allocation, but srun is not in PATH; with --standalone all nodes are on this machine")
    if options["netns"]:
        raise ConfigError("--netns: the nodes of a Slurm allocation have networks of their own; it goes with --standalone")
    return allocation


def settle_seats(options: dict[str, Any], allocation: Allocation) -> None:
    """Fills in what the allocation says and the command line does not."""
    context = click.get_current_context()
    given = {
        name for name in ("nnodes", "spares", "signals") if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    chosen = seats(
        allocation,
        nnodes=options["nnodes"] if "nnodes" in given else None,
        spares=options["spares"] if "spares" in given else None,
    )
    options["nnodes"], options["spares"] = (chosen.at_least, chosen.nnodes), chosen.spares
    if "signals" not in given:
        options["signals"] += ",SIGUSR1"  # what --signal=B:USR1@... sends before the time is up
    options["job_id"] = options["job_id"] or f"{short_name(options['script'])}-{allocation.job_id}"


def find_meeting(options: dict[str, Any], interface: str | None) -> "Meeting | None":
    """Returns where the job's machines meet, None when all nodes are here. Its job then has a name that all of them know."""
    from deadpool.cli.nodes.rendezvous import meeting_of

    given = torchrun.given_in(options)
    if options["nnodes"][1] == 1:
        return None
    meeting = meeting_of(given, interface)
    if meeting is not None:
        named = re.sub(r"[^A-Za-z0-9._-]+", "-", str(given.get("rdzv-id", ""))).strip("-._")[:48]
        options["job_id"] = options["job_id"] or named or f"{short_name(options['script'])}-{meeting.port}"
    return meeting


def settle_hosts(options: dict[str, Any], hosts: tuple[str, ...]) -> None:
    """Fills in who trains and who waits; ConfigError when there are too few hosts."""
    if options["journal"]:
        raise ConfigError("--hosts: the launcher is the supervisor's home; with --journal start the job on each machine")
    if click.get_current_context().get_parameter_source("nnodes") is ParameterSource.DEFAULT:
        training = len(hosts) - options["spares"]
        options["nnodes"] = (training, training)
    least, most = options["nnodes"]
    if least + options["spares"] > len(hosts) or least < 1:
        raise ConfigError(f"--hosts: {len(hosts)} hosts are too few for --nnodes {least} and --spares {options['spares']}")
    most = min(most, len(hosts) - options["spares"])
    options["nnodes"], options["spares"] = (least, most), len(hosts) - most


def size(config: JobConfig) -> str:
    def count(number: int, noun: str) -> str:
        return f"{number} {noun}" + ("s" if number != 1 else "")

    spares = f", {count(config.spares, 'spare')}" if config.spares else ""
    return f"{count(config.nnodes, 'node')} x {count(config.nproc_per_node, 'rank')}{spares}"


def job_config(options: dict[str, Any], *, standalone: bool) -> tuple[JobConfig, list[str]]:
    """Returns the configuration that the command line describes, and what to say of options that change nothing.

    ConfigError names what cannot be used.
    """
    options["min_nnodes"], options["nnodes"] = options["nnodes"]
    given = torchrun.take_out(options)
    torchrun.check_foreign(given, machines=options["nnodes"])
    module, no_python, run_path = options.pop("module"), options.pop("no_python"), options.pop("run_path")
    if module and no_python:
        raise ConfigError("-m and --no-python: choose one")
    entry = Entry.SCRIPT if run_path else Entry.MODULE if module else Entry.PROGRAM if no_python else Entry.SCRIPT
    script, args = options.pop("script"), options.pop("args")
    check_script(script, entry)
    python = interpreter()
    if isinstance(options["nproc_per_node"], str):
        options["nproc_per_node"] = torchrun.count_devices(options["nproc_per_node"], python)
    texts = options.pop("injections")
    run_id = torchrun.run_id(given, standalone=standalone)
    job_id = options.pop("job_id") or f"{short_name(script)}-{secrets.token_hex(3)}"
    settle_checkpoints(options)
    options["journal"] = str(Path(options["journal"]).absolute()) if options["journal"] else ""
    options["log_dir"] = str(Path(options["log_dir"] or Path("logs", job_id)).absolute())
    options["on_exhausted"] = OnExhausted(options["on_exhausted"])
    options["failure_rules"] = read_rules(options["failure_rules"])
    if options["start_method"] == "fork":
        options["start_method"] = "forkserver"
    config = JobConfig(
        **options,
        job_id=job_id,
        run_id=run_id,
        command=(script, *args),
        entry=entry,
        python=python,
        injections=tuple(parse_injection(text, number) for number, text in enumerate(texts, 1)),
    )
    check(config)
    return config, list(torchrun.notes(given, machines=config.nnodes, standalone=standalone))


def check(config: JobConfig) -> None:
    """Raises ConfigError for values that fit each by itself but not together."""
    if config.heartbeat_timeout_s <= config.heartbeat_every_s:
        raise ConfigError(
            f"--heartbeat-timeout {config.heartbeat_timeout_s:g}: must be longer than --heartbeat-interval "
            f"({config.heartbeat_every_s:g}), best three times as long"
        )
    if config.netns:
        check_possible()
    for injection in config.injections:
        check_target(injection, config)


def check_target(injection: Injection, config: JobConfig) -> None:
    fault = FAULTS[injection.kind]
    what, count = fault.target.value, config.world_size if fault.target is Target.RANK else config.nnodes + config.spares
    if fault.netns and not config.netns:
        raise ConfigError(f"--inject {injection.kind}: each node needs a network of its own: add --netns")
    if fault.target is not Target.NONE and injection.target >= count:
        raise ConfigError(
            f"--inject {injection.kind}:{injection.target}@{injection.step}: there is no {what} {injection.target} "
            f"({what}s are 0..{count - 1})"
        )


def read_rules(path: Path | None) -> str:
    """Returns the text of a file of failure rules, "" without one; ConfigError when they cannot be used."""
    if path is None:
        return ""
    from deadpool.supervisor.failures.rules import parse_rules

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--failure-rules {path}: {error}") from error
    parse_rules(text, f"--failure-rules {path}")
    return text


def check_script(script: str, entry: Entry) -> None:
    """Raises ConfigError for what is no script or program. It is passed on as it was given: sys.argv is torchrun's."""
    if entry is Entry.PROGRAM and shutil.which(script) is None:
        raise ConfigError(f"program {script}: not found, or not executable")
    if entry is Entry.SCRIPT and not is_runnable(script):
        raise ConfigError(f"script {script}: " + ("a folder without __main__.py" if Path(script).is_dir() else "no such file"))


def interpreter() -> str:
    """Returns the ranks' interpreter: $PYTHON_EXEC, as for torchrun, else this one."""
    named = os.environ.get("PYTHON_EXEC", sys.executable)
    python = shutil.which(named)
    if python is None:
        raise ConfigError(f"PYTHON_EXEC={named}: not found, or not executable")
    return str(Path(python).absolute())


def short_name(script: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-_")[:24] or "job"


if __name__ == "__main__":
    main()
