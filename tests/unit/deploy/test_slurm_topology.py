"""Slurm's words for where a node is."""

from deadpool.deploy.slurm.topology import domain_of


def said(address: str, pattern: str) -> str:
    return domain_of({"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern})


def test_the_switches_or_the_block_above_a_node_are_its_domain() -> None:
    assert said("s0.s2.n5", "switch.switch.node") == "s0/s2"
    assert said("b3.n5", "block.node") == "b3"
    assert said("n5", "node") == ""
    assert domain_of({}) == ""


def test_a_name_with_dots_tells_nothing() -> None:
    assert said("n5.cluster.example", "node") == ""
    assert said("s0.n5.cluster", "switch.node") == ""
