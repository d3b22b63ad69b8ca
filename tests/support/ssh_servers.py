"""Real ssh for tests: servers of their own, and an `ssh` in PATH that knows the servers' key and has one that they take."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from launching import until

_SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
_LISTENS_S = 60.0
_PRIVILEGE_SEPARATION = Path("/run/sshd")  # must be there when root starts a server

needs_sshd = pytest.mark.skipif(_SSHD is None, reason="needs an ssh server (Debian: openssh-server)")


class SshServers:
    """They all listen on `port`. `environment`: in it `ssh` reaches them."""

    def __init__(self, folder: Path, port: int = 22) -> None:
        self._folder, self._port = folder / "ssh", port
        self._folder.mkdir()
        for name in ("host_key", "key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)]
            subprocess.run(command, stdin=subprocess.DEVNULL, timeout=100, check=True)
        (self._folder / "known_hosts").write_text(f"machines {(self._folder / 'host_key.pub').read_text()}")
        settings = [f"Port {port}", f"IdentityFile {self._folder / 'key'}", "IdentitiesOnly yes", "HostKeyAlias machines"]
        settings += [f"UserKnownHostsFile {self._folder / 'known_hosts'}", "GlobalKnownHostsFile /dev/null"]
        (self._folder / "config").write_text("\n".join(settings) + "\n")
        program = self._folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self._folder / "config"} "$@"\n')
        program.chmod(0o755)
        self.environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}

    def command(self, address: str) -> list[str]:
        """Returns what serves on that address until it is ended. To be run on the machine that has the address."""
        assert _SSHD is not None
        if os.geteuid() == 0:
            _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        settings = {
            "ListenAddress": f"{address}:{self._port}",
            "HostKey": self._folder / "host_key",
            "AuthorizedKeysFile": self._folder / "key.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
        }
        return [_SSHD, "-D", "-e", "-f", "/dev/null", *(f"-o{name}={value}" for name, value in settings.items())]

    def until_listening(self, address: str) -> None:
        until(lambda: self._listens(address), _LISTENS_S, f"an ssh server listens on {address}")

    def _listens(self, address: str) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((address, self._port)) == 0
