"""Reads what a launch finds where it is started."""

import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from typing import Any

from deadpool.cli.options.devices import count_devices
from deadpool.cli.plan.environment import LaunchEnvironment
from deadpool.cli.plan.plan import Rendezvous


def read_environment() -> LaunchEnvironment:
    return LaunchEnvironment(
        variables=dict(os.environ),
        folder=os.getcwd(),
        python=sys.executable,
        suffix=secrets.token_hex(3),
        find_program=shutil.which,
        count_devices=count_devices,
        find_rendezvous=_find_rendezvous,
    )


def _find_rendezvous(given: Mapping[str, Any], interface: str | None) -> Rendezvous | None:
    from deadpool.cli.nodes.rendezvous import rendezvous_of  # psutil, which most launches do not need

    return rendezvous_of(given, interface)
