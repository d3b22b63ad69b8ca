"""Slurm's word on the nodes: asked for now and then, told once, and again until it was heard."""

from deadpool.cli.nodes.slurm import StateChanges


def line(node: str, state: str) -> str:
    return f"NodeName={node} Arch=x86_64 State={state} ThreadsPerCore=1\n"


def test_it_is_asked_now_and_then() -> None:
    words = StateChanges(30.0)
    assert [now_s for now_s in range(0, 100, 10) if words.due(now_s)] == [0, 30, 60, 90]


def test_only_changes_count_and_they_count_until_they_were_passed_on() -> None:
    words = StateChanges(30.0)
    assert words.changes(line("n1", "MIXED") + line("n2", "ALLOCATED")) == {}
    drains = line("n1", "MIXED") + line("n2", "ALLOCATED+DRAIN")
    assert set(words.changes(drains)) == set(words.changes(drains)) == {"n2"}
    words.passed_on("n2", words.changes(drains)["n2"])
    assert words.changes(drains) == {}
    resumed = words.changes(line("n2", "ALLOCATED"))
    assert not resumed["n2"].drains
    words.passed_on("n2", resumed["n2"])
    assert words.changes(line("n2", "ALLOCATED")) == {}


def test_a_node_that_drains_may_go_down() -> None:
    words = StateChanges(30.0)
    words.passed_on("n2", words.changes(line("n2", "ALLOCATED+DRAIN"))["n2"])
    assert words.changes(line("n2", "DOWN+DRAIN"))["n2"].down


def test_slurm_s_silence_changes_nothing() -> None:
    words = StateChanges(30.0)
    drains = words.changes(line("n2", "ALLOCATED+DRAIN"))
    words.passed_on("n2", drains["n2"])
    assert words.changes("slurm_load_node error: Unable to contact slurm controller\n") == {}
