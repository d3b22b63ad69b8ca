"""`deadpool doctor` on this machine, and on others, by ssh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ports import port_for_later
from ssh_servers import SshServers, needs_sshd


def doctor(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deadpool.cli.main", "doctor", *arguments],
        env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_this_machine_is_looked_at() -> None:
    good = doctor("--json", "--interface", "lo", "--python", sys.executable)
    findings = {each["check"]: each for each in json.loads(good.stdout)}
    assert {"/dev/shm", "nofile", "memlock", "ports", "torch", "MPI", "interface", "bandwidth"} <= findings.keys()
    assert "GB/s" in findings["bandwidth"]["found"]
    assert findings["torch"]["found"].startswith("torch 2.")
    assert good.returncode == any(each["level"] == "fail" for each in findings.values())


def test_what_fails_is_exit_code_1_and_says_what_to_do() -> None:
    bad = doctor("--state-size", "900T", "--python", "/nowhere/python")
    assert bad.returncode == 1
    assert "remount" in bad.stdout
    assert "install torch for the ranks' interpreter" in " ".join(bad.stdout.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace")
def test_a_machine_that_does_not_reach_itself() -> None:
    command = ["unshare", "--net", sys.executable, "-m", "deadpool.cli.main", "doctor", "--json", "--python", "/nowhere/python"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    (bandwidth,) = [each for each in json.loads(answer.stdout) if each["check"] == "bandwidth"]
    assert (answer.returncode, bandwidth["level"], bandwidth["advice"]) == (1, "fail", "ip link set lo up")


@pytest.mark.parametrize("arguments", [("--interface", "nowhere7"), ("--hosts", "-oProxyCommand=x"), ("--state-size", "much")])
def test_bad_input_is_one_line(arguments: tuple[str, ...]) -> None:
    bad = doctor(*arguments)
    assert (bad.returncode, bad.stderr.count("\n")) == (2, 1), bad.stderr


@needs_sshd
def test_other_machines_are_asked_over_ssh(tmp_path: Path) -> None:
    servers = SshServers(tmp_path, port=port_for_later())
    server = subprocess.Popen(servers.command("127.0.0.1"), stderr=subprocess.DEVNULL)
    try:
        servers.until_listening("127.0.0.1")
        hosts = ("--hosts", "127.0.0.1,localhost,unknown", "--python", "/nowhere/python")
        answer = doctor("--json", *hosts, environment=servers.environment)
    finally:
        server.kill()
        server.wait()
    findings = json.loads(answer.stdout)
    assert answer.returncode == 1
    by_node = {(each["node"], each["check"]): each for each in findings}
    assert by_node["unknown", "ssh"]["level"] == "fail"
    assert "cannot be reached by ssh" in by_node["unknown", "ssh"]["found"]
    for host in ("127.0.0.1", "localhost"):
        assert by_node[host, "clock"]["level"] == "ok"
        assert by_node[host, "torch"]["level"] == "fail"
    assert "GB/s" in by_node["127.0.0.1 -> localhost", "bandwidth"]["found"]
