"""Jobs over several machines that are started by hand on each, or over ssh. Network namespaces are the machines."""

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import until
from machines import Machines, Started, machines, wait_for_text
from mpi_edges import GROWING, needs_mpi
from ssh_servers import SshServers, needs_sshd
from training import ROOT, SLOWLY, SMALL, STEPS, Training

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")]

SCRIPT = """
import os, pathlib, time
rank, restarts = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
with open("ran", "a") as file:
    file.write(f"{rank} of {os.environ['WORLD_SIZE']} restart {restarts} at {os.environ['DEADPOOL_HOST']}\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Machines]:
    (tmp_path / "script.py").write_text(SCRIPT)
    with (
        tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp") as runtime,
        machines(tmp_path, Path(runtime), "a", "b", "c") as found,
    ):
        yield found


def hand(three: Machines, *more: str) -> tuple[str, ...]:
    return ("--nnodes", "2", "--rdzv-endpoint", f"{three.address('a')}:29411", "--log-dir", "logs", *more, "script.py")


def ran(three: Machines) -> list[str]:
    path = three.folder / "ran"
    return sorted(path.read_text().splitlines()) if path.exists() else []


def test_the_same_command_on_each_machine(three: Machines) -> None:
    """Started in the wrong order, one machine too many, and one dies: it is the others' job."""
    second = three.launch("b", *hand(three, "--max-restarts", "1"))
    wait_for_text(second.err_path, "waiting for the supervisor")
    first = three.launch("a", *hand(three, "--max-restarts", "1"))
    wait_for_text(three.folder / "ran", "restart 0", 2)
    assert ran(three) == [f"{rank} of 2 restart 0 at {three.address(name)}" for rank, name in enumerate("ab")]
    stranger = three.launch("c", *hand(three), environment={"DEADPOOL_TOKEN": "another"})
    assert (stranger.wait(), stranger.err.count("\n")) == (2, 1), stranger.err
    assert "has another token" in stranger.err
    third = three.launch("c", *hand(three, "--max-restarts", "1"))
    wait_for_text(three.folder / "logs" / "events.jsonl", '"node_joined"', 3)
    second.process.send_signal(signal.SIGKILL)
    wait_for_text(three.folder / "ran", "restart 0", 4)  # not counted: the script might have been on its way to join()
    places = [(0, "a"), (0, "a"), (1, "b"), (1, "c")]
    assert ran(three) == sorted(f"{rank} of 2 restart 0 at {three.address(name)}" for rank, name in places)
    (three.folder / "go").touch()
    assert (first.wait(), third.wait()) == (0, 0), f"{first.err}\n{third.err}"


def hooked(*more: str) -> tuple[str, ...]:
    """The example, whose steps take longer until there is a file `hurry`: there is time to do something to a machine."""
    training = ("--steps", str(STEPS), "--loss-log", "losses", "--digest", "digests", *SMALL)
    own = ("--nproc-per-node", "2", "--summary-json", "summary.json", "--log-dir", "logs")
    return (*own, *more, SLOWLY, str(ROOT / "examples" / "train_gpt.py"), *training)


def over_ssh(three: Machines, *names: str) -> dict[str, str]:
    """Returns the environment in which `ssh` reaches these machines."""
    servers = SshServers(three.folder)
    for name in names:
        three.run(name, servers.command(three.address(name)))
    for name in names:
        servers.until_listening(three.address(name))
    return servers.environment


def read_events(path: Path) -> list[dict[str, Any]]:
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def until_steps(three: Machines, steps: int) -> None:
    wait_for_text(three.folder / "losses", "\n", 4 * steps, timeout_s=150)


def assert_unbroken(three: Machines, jobs: Sequence[Started], spare: str, reference: Training) -> None:
    (three.folder / "hurry").touch()
    assert [job.wait(150) for job in jobs] == [0] * len(jobs), "\n".join(job.err for job in jobs)
    summary = json.loads((three.folder / "summary.json").read_text())
    training = Training(three.folder / "losses", three.folder / "digests", summary)
    training.assert_same_as(reference)
    (recovery,) = summary["recoveries"]
    assert spare in recovery["spare"]
    assert recovery["survivors_kept_processes"]
    assert summary["committed_steps_lost"] == 0


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_machine_is_lost_in_the_middle_of_a_training(three: Machines, reference: Training, lost: str) -> None:
    """Also the one that the endpoint names: then another one decides."""
    journal = ("--journal", str(three.folder / "shared"), "--heartbeat-timeout", "2") if lost == "a" else ()
    options = hooked("--nnodes", "2", "--rdzv-endpoint", f"{three.address('a')}:29411", *journal)
    jobs = {name: three.launch(name, *options) for name in ("a", "b")}
    until_steps(three, 2)
    jobs["c"] = three.launch("c", *options)
    wait_for_text(three.folder / "logs" / "events.jsonl", '"node_joined"', 3)
    until_steps(three, 8)
    three.networks.cut(lost)
    three.kill(lost)
    del jobs[lost]
    assert_unbroken(three, list(jobs.values()), f"-{jobs['c'].process.pid}-", reference)  # a node's name has its launcher's pid


@needs_sshd
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_host_is_lost_in_the_middle_of_a_training(three: Machines, reference: Training) -> None:
    hosts = ",".join(three.address(name) for name in three.names)
    job = three.launch("launcher", *hooked("--hosts", hosts, "--spares", "1"), environment=over_ssh(three, *three.names))
    until_steps(three, 8)
    three.networks.cut("b")
    assert_unbroken(three, [job], three.address("c"), reference)


@needs_sshd
@needs_mpi
@pytest.mark.long
@pytest.mark.timeout(300)
def test_replicas_travel_by_mpi_between_hosts(three: Machines) -> None:
    hosts, events = [three.address(name) for name in three.names], three.folder / "logs" / "events.jsonl"

    def until_open(node: str, holder: str) -> None:
        edge = {"event": "edge_open", "node": node, "holder": holder}
        until(lambda: any(edge.items() <= each.items() for each in read_events(events)), 90, f"the edge {node} -> {holder}")

    options = ("--hosts", ",".join(hosts), "--spares", "1", "--h2h", "mpi", "--log-dir", "logs")
    job = three.launch("launcher", *options, *GROWING, environment=over_ssh(three, *three.names))
    until_open(hosts[0], hosts[1])
    wait_for_text(three.folder / "losses", "\n", 4)
    three.networks.cut("b")
    until_open(hosts[0], hosts[2])
    (three.folder / "hurry").touch()
    assert job.wait(100) == 0, job.err


@pytest.mark.long
def test_the_machine_of_the_endpoint_is_lost(three: Machines) -> None:
    """With --journal no machine is special: another one decides, and one that comes later finds it."""
    options = hand(three, "--max-restarts", "1", "--journal", str(three.folder / "shared"), "--heartbeat-timeout", "2")
    three.launch("a", *options)
    second = three.launch("b", *options)
    wait_for_text(three.folder / "ran", "restart 0", 2)
    three.networks.cut("a")
    three.kill("a")
    third = three.launch("c", *options)
    wait_for_text(three.folder / "ran", "at ", 4)
    assert sorted(line.split()[-1] for line in ran(three)) == sorted(three.address(name) for name in "abbc")
    (three.folder / "go").touch()
    assert (second.wait(), third.wait()) == (0, 0), f"{second.err}\n{third.err}"


@needs_sshd
def test_over_ssh(three: Machines) -> None:
    ssh = over_ssh(three, "a", "b")
    addresses = ",".join(three.address(name) for name in ("a", "b"))
    job = three.launch("launcher", "--hosts", addresses, "--log-dir", "logs", "script.py", environment=ssh)
    wait_for_text(three.folder / "ran", "restart 0", 2)
    assert ran(three) == [f"{rank} of 2 restart 0 at {three.address(name)}" for rank, name in enumerate("ab")]
    (three.folder / "go").touch()
    assert job.wait() == 0, job.err


@pytest.mark.parametrize(
    ("machine", "arguments", "words"),
    [
        ("b", ("--rdzv-endpoint", "nowhere.invalid:29411"), "does not resolve"),
        ("b", ("--rdzv-endpoint", "{a}:29411", "--rdzv-conf", "join_timeout=1"), "no supervisor answers"),
        ("b", ("--rdzv-endpoint", "203.0.113.1:29411"), "cannot be reached"),
        ("a", ("--rdzv-endpoint", "{a}:29411", "--interface", "nowhere7"), "no such interface"),
        pytest.param("launcher", ("--hosts", "{a},unknown"), "cannot be reached by ssh", marks=needs_sshd),
        ("launcher", ("--hosts", "{a}", "--nnodes", "2"), "too few"),
    ],
)
def test_bad_input_is_one_line(three: Machines, machine: str, arguments: tuple[str, ...], words: str) -> None:
    ssh = over_ssh(three, "a") if "{a},unknown" in arguments else {}
    nnodes = () if machine == "launcher" else ("--nnodes", "2")
    given = [each.replace("{a}", three.address("a")) for each in arguments]
    bad = three.launch(machine, *nnodes, *given, "--log-dir", "logs", "script.py", environment=ssh)
    assert bad.wait() == 2, bad.err
    assert bad.err.count("\n") == 1, bad.err
    assert words in bad.err
    assert not (three.folder / "logs").exists()


def test_two_supervisors_on_one_endpoint(three: Machines) -> None:
    where = (three.address("a"), 29411)
    listen = f"import socket; s = socket.create_server({where}); print('here', flush=True); s.accept(); s.accept()"
    other = three.run("a", [sys.executable, "-c", listen])
    wait_for_text(other.out_path, "here")
    bad = three.launch("a", *hand(three))
    assert (bad.wait(), bad.err.count("\n")) == (2, 1), bad.err
