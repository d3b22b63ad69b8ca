"""A command line of deadpool-launch and a made-up machine, as values: what `resolve` makes of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from deadpool.cli import launch
from deadpool.cli.options.read import options_of
from deadpool.cli.plan.environment import LaunchEnvironment
from deadpool.cli.plan.plan import LaunchPlan, Rendezvous
from deadpool.cli.plan.resolve import resolve

RENDEZVOUS = Rendezvous(given="trainer1:29400", address="192.0.2.1", port=29400, here=True, index=0)


def _meet(given: Mapping[str, Any], interface: str | None) -> Rendezvous | None:
    return RENDEZVOUS if given.keys() & {"rdzv-endpoint", "master-addr", "node-rank"} else None


ENVIRONMENT = LaunchEnvironment(
    variables={},
    folder="/home/me",
    python="/bin/python",
    suffix="abc123",
    find_program=lambda name: name if name.startswith("/") else f"/bin/{name}",
    count_devices=lambda kind, python: 8,
    find_rendezvous=_meet,
)


def plan(*arguments: str, variables: Mapping[str, str] | None = None, **environment: Any) -> LaunchPlan:
    """Returns the plan for `deadpool-launch ARGUMENTS` in that environment; errors are what resolve and click raise."""
    context = launch.launch.make_context("deadpool-launch", list(arguments))
    return resolve(options_of(context), replace(ENVIRONMENT, variables=variables or {}, **environment))
