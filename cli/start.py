"""Carries out a plan: what it needs is looked at, then supervisor and nodes are started, in the plan's way."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import assert_never

from deadpool.cli.checks import check_machine, tight_limits
from deadpool.cli.launcher.children import Children
from deadpool.cli.launcher.job import WARNINGS, LaunchedJob, Nodes
from deadpool.cli.launcher.job_dirs import job_folder, log_folder
from deadpool.cli.plan.plan import ByHand, InAllocation, LaunchPlan, OverSsh, Standalone

Say = Callable[[str], None]


def start(plan: LaunchPlan, say: Say) -> int:
    """Returns the job's exit code. `say` prints a line of ours."""
    check_machine(plan)
    for remark in (*plan.remarks, tight_limits(plan)):
        if remark:
            say(remark)
    if plan.preflight:
        from deadpool.cli.doctor.command import preflight

        preflight(plan.config, port=None if isinstance(plan.way, ByHand) else plan.port, interface=plan.interface, say=say)
    token = ""
    if isinstance(plan.way, ByHand):
        from deadpool.cli.nodes import by_hand

        token = by_hand.token_for(plan.config)
        if by_hand.belongs_elsewhere(plan.config, plan.way.rendezvous, token):
            return by_hand.join(plan, plan.way.rendezvous, token, say)
    exit_code = _run_job(plan, token, say)
    say(f"job {plan.config.job_id}: {'done' if exit_code == 0 else f'ended with exit code {exit_code}'}")
    if isinstance(plan.way, InAllocation) and plan.way.requeue and exit_code - 128 in WARNINGS:
        from deadpool.cli.nodes.slurm import put_back

        put_back(plan.way.allocation, say)
    return exit_code


def _run_job(plan: LaunchPlan, token: str, say: Say) -> int:
    """Runs the job whose launcher this process is; returns its exit code."""
    config = plan.config
    children = Children()
    with ExitStack() as stack:
        stack.enter_context(log_folder(Path(config.log_dir)))
        folder = stack.enter_context(job_folder(config, token))
        nodes, port = open_nodes(plan, folder, children, say)
        for_supervisor = [*([] if port is None else ["--port", str(port)]), *plan.for_supervisor]
        greeting = f"job {config.job_id}: {plan.size}; logs in {config.log_dir}"
        return LaunchedJob(config, folder, say, for_supervisor, nodes, children).run(greeting)


def open_nodes(plan: LaunchPlan, folder: Path, children: Children, say: Say) -> tuple[Nodes, int | None]:
    """Returns the job's nodes, to be started, and the port where the supervisor must listen for them (None: any).

    `folder`: the job's. What is started for the nodes will be among `children`.
    """
    config, way = plan.config, plan.way
    match way:
        case Standalone():
            from deadpool.cli.nodes.standalone import StandaloneNodes

            return StandaloneNodes(config, folder, children), plan.port
        case OverSsh(hosts=hosts):
            from deadpool.cli.nodes.hosts import HostNodes, launcher_address
            from deadpool.host.ports import free_port
            from deadpool.proto.secret import read_private

            host = launcher_address(hosts, plan.interface)
            port = plan.port or free_port(host)
            token = read_private(folder / "token")
            return HostNodes(config, children, hosts, token, host=host, port=port, interface=plan.interface, say=say), port
        case InAllocation(allocation=allocation, poll_s=poll_s):
            from deadpool.cli.nodes.slurm import AllocationNodes

            nodes = AllocationNodes(config, folder, children, allocation, say, interface=plan.interface, poll_s=poll_s)
            return nodes, plan.port
        case ByHand(rendezvous=rendezvous):
            from deadpool.cli.nodes.by_hand import own_node

            return own_node(config, folder, children, rendezvous, interface=plan.interface, say=say), plan.port
        case _:
            assert_never(way)
