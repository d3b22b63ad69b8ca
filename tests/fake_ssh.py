"""An ssh that runs its command on this machine: for tests of what goes over ssh."""

import os
from collections.abc import Mapping
from pathlib import Path

_SCRIPT = """#!/bin/sh
# ssh [-o OPTION]... -T HOST COMMAND
while [ "$1" = -o ]; do
    case "$2" in BatchMode=yes|ConnectTimeout=*) ;; *) echo "unexpected: $2" >&2; exit 255;; esac
    shift 2
done
[ "$1" = -T ] && shift
host=$1
shift
case "$host" in
{cases}
    *) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255;;
esac
"""


def fake_ssh(folder: Path, hosts: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which `ssh` is ours. `hosts`: name -> what to run its commands with, such as ip netns exec."""
    cases = "\n".join(f'    {host}) exec {prefix} sh -c "$*";;' for host, prefix in hosts.items())
    program = folder / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(_SCRIPT.replace("{cases}", cases))
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}
