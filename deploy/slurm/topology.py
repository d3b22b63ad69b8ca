"""Which nodes fail together, as Slurm's topology says: a task's environment in, the node's domain out. Pure.

Slurm sets SLURM_TOPOLOGY_ADDR (`s0.s2.n5`: the switches above the node, or its block, the node last) and, beside it, what each
part is (`switch.switch.node`).
"""

from collections.abc import Mapping

_NODE = "node"


def domain_of(environment: Mapping[str, str]) -> str:
    """Returns the node's domain, the widest part first (`s0/s2`); "" where Slurm knows of none, or there is no Slurm."""
    address = environment.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environment.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(address) != len(kinds) or kinds[-1] != _NODE:  # a node's name with dots in it: nothing can be told apart
        return ""
    return "/".join(part for part in address[:-1] if part)
