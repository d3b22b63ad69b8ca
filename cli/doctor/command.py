"""`deadpool doctor`: looks at this machine, the hosts that are named, a running job and Slurm; checks.py says what it means."""

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from deadpool.cli.doctor import checks, probes, throughput
from deadpool.cli.doctor.checks import DoctorPlan, Finding, Level, Machine
from deadpool.cli.live.standing import hot_text
from deadpool.cli.nodes.ssh import failure, output_of, ssh_command
from deadpool.host.addresses import interface_address
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.config import JobConfig, Readiness
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.secret import make_token

_PROBE_S = 90.0  # torch may be imported from a cold disk
_SHORT_S = 30.0
_LOCAL = "127.0.0.1"


def examine(
    plan: DoctorPlan, *, python: str, interface: str | None = None, hosts: Sequence[str] = (), job: JobStatus | None = None
) -> list[Finding]:
    """Returns what there is to say of all that was named. ConfigError: no such interface."""
    found = list(checks.machine_findings(probes.this_machine(port=plan.port, python=python), plan))
    address = _LOCAL if interface is None else interface_address(interface)
    if interface is not None:
        found.append(_link(interface, address))
    if not hosts:
        found.append(_within(address, plan))
    else:
        found += _hosts(plan, python, hosts)
    if job is not None:
        found += _job(job)
    config = probes.slurm_config()
    if config is not None:
        job_id = os.environ.get("SLURM_JOB_ID")
        found += checks.slurm(config, probes.batch_script(job_id) if job_id else None, os.environ)
    return found


def preflight(config: JobConfig, *, port: int | None, interface: str | None, say: Callable[[str], None]) -> None:
    """Says what is not as it should be for this job, here; ConfigError when something would make it fail."""
    plan = DoctorPlan(
        world_size=config.world_size,
        nproc_per_node=config.nproc_per_node,
        nnodes=config.nnodes,
        spares=config.spares,
        replicas=config.replicas,
        places=config.place_replicas,
        checkpoints=bool(config.checkpoint_dir),
        verify_every=config.verify_every,
        port=port or 0,
        hot_spares=config.spare_readiness is Readiness.HOT and config.spares > 0,
        hot_standins=config.hot_standins,
    )
    findings = examine(plan, python=config.python, interface=interface)
    for each in findings:
        if each.level is not Level.OK:
            say(f"preflight: {each.check}: {each.level}: {each.found}" + (f"; {each.advice}" if each.advice else ""))
    if failed(findings):
        raise ConfigError("--preflight: something would fail; nothing was started")
    say(f"preflight: {len(findings)} checks, {sum(each.level is Level.OK for each in findings)} ok")


def failed(findings: Sequence[Finding]) -> bool:
    return any(each.level is Level.FAIL for each in findings)


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in findings]


def _within(address: str, plan: DoctorPlan) -> Finding:
    try:
        return checks.bandwidth("", throughput.within(address), plan)
    except OSError as error:
        return checks.no_connection(address, error.strerror or str(error))


def _link(interface: str, address: str) -> Finding:
    stats = psutil.net_if_stats().get(interface)
    up = stats is not None and stats.isup
    speed = f", {stats.speed} Mb/s" if stats is not None and stats.speed else ""
    level = Level.OK if up else Level.FAIL
    advice = "" if up else f"ip link set {interface} up, or choose another"
    return Finding(check="interface", level=level, found=f"{interface} {address}{speed}{'' if up else ', down'}", advice=advice)


def _job(job: JobStatus) -> Iterator[Finding]:
    """What the agents of a running job say."""
    for node in job.nodes:
        if node.role == "lost":
            continue
        yield checks.clock(node.node_id, node.clock_ahead_s)
        if node.hot_ranks:
            yield Finding(check="memory", level=Level.OK, found=f"hot for {hot_text(node)}", node=node.node_id)
        for trouble in node.troubles:
            yield Finding(check="node", level=Level.WARN, found=trouble, advice="see deadpool events", node=node.node_id)
    if job.hooked and job.replicas:
        yield checks.replicas(job)
    if job.unprotected:
        advice = "the state is not protected: see deadpool events"
        yield Finding(check="protection", level=Level.FAIL, found=job.unprotected, advice=advice)


# ---------------------------------------------------------------- other machines


def _hosts(plan: DoctorPlan, python: str, hosts: Sequence[str]) -> Iterator[Finding]:
    reachable = []
    with ThreadPoolExecutor(max_workers=len(hosts)) as pool:
        for host, asked in [(host, pool.submit(_ask, host, plan, python)) for host in hosts]:
            try:
                machine, ahead_s, uncertain_s = asked.result()
            except DeadpoolError as error:
                advice = f"try: ssh -o BatchMode=yes {host} true; the same Python must be there"
                yield Finding(check="ssh", level=Level.FAIL, found=str(error), advice=advice, node=host)
                continue
            reachable.append(host)
            yield checks.clock(host, ahead_s, uncertain_s)
            for each in checks.machine_findings(machine, plan):
                yield dataclasses.replace(each, node=host)
    neighbours = list(zip(reachable, [*reachable[1:], *reachable[:1]], strict=True)) if len(reachable) > 1 else []
    for sender, receiver in neighbours:
        between = f"{sender} -> {receiver}"
        try:
            yield checks.bandwidth(between, _between(sender, receiver), plan)
        except (DeadpoolError, OSError, ValueError) as error:
            advice = "the machines must reach each other on any port: look at the firewall, or choose an --interface"
            yield Finding(check="bandwidth", level=Level.FAIL, found=str(error), advice=advice, node=between)


def _ask(host: str, plan: DoctorPlan, python: str) -> tuple[Machine, float, float]:
    """Returns (what the machine says of itself, how far its clock is ahead, to within how much)."""
    command = [sys.executable, "-P", "-m", "deadpool.cli.doctor.probes", str(plan.port), python]
    machine = probes.from_json(output_of(host, command, timeout_s=_PROBE_S))
    began_s = time.time()
    there_s = float(output_of(host, ["date", "+%s.%N"], timeout_s=_SHORT_S))
    took_s = time.time() - began_s
    return machine, there_s - began_s - took_s / 2, took_s / 2


def _between(sender: str, receiver: str) -> float:
    """Returns the bytes per second from one host to the other, at the address by which the sender knows it."""
    token, module = make_token(), [sys.executable, "-P", "-m", "deadpool.cli.doctor.throughput"]
    listening = subprocess.Popen(
        ssh_command(receiver, [*module, "listen", "0.0.0.0"]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert listening.stdin is not None
    assert listening.stdout is not None
    try:
        listening.stdin.write(f"{token}\n")
        listening.stdin.flush()
        port = listening.stdout.readline().strip()
        if not port:
            _, said = listening.communicate(timeout=_SHORT_S)
            raise ConfigError(f"{receiver}: {failure(listening.returncode, said)}")
        address = receiver.rpartition("@")[2]
        return float(output_of(sender, [*module, "send", address, port], given=f"{token}\n", timeout_s=_SHORT_S))
    finally:
        listening.kill()
        listening.communicate()
