"""resolve(): a command line and what is around it in, a plan out; nobody else is asked."""

import click
import pytest
from command_line import RENDEZVOUS, plan

from deadpool.cli.plan.plan import ByHand, InAllocation, OverSsh, Standalone
from deadpool.deploy.slurm.allocation import Allocation
from deadpool.host.errors import ConfigError
from deadpool.proto.config import Entry, Injection, JobConfig, OnExhausted

SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "2(x3)"}
ALLOCATION = Allocation(job_id="7", nodes=("n1", "n2", "n3"), cpus=(2, 2, 2))


def test_defaults_are_those_of_jobconfig() -> None:
    found = plan("train.py")
    assert found.config == JobConfig(
        job_id="train-abc123",
        nnodes=1,
        min_nnodes=1,
        nproc_per_node=1,
        command=("train.py",),
        python="/bin/python",
        log_dir="/home/me/logs/train-abc123",
    )
    assert (found.way, found.remarks, found.for_supervisor) == (Standalone(), (), [])
    assert (found.port, found.interface, found.preflight, found.size) == (None, None, False, "1 node x 1 rank")


def test_the_scripts_own_options_are_left_alone() -> None:
    config = plan("--nnodes", "2", "train.py", "--nnodes", "7", "--spares=3", "-m", "--", "x").config
    assert config.nnodes == 2
    assert config.command == ("train.py", "--nnodes", "7", "--spares=3", "-m", "--", "x")


def test_both_spellings_and_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "4")
    config = plan("--nproc_per_node=2", "--heartbeat_timeout", "9", "--nnodes", "3:3", "--on_exhausted", "abort", "t.py").config
    assert (config.nnodes, config.nproc_per_node, config.max_restarts) == (3, 2, 4)
    assert (config.heartbeat_timeout_s, config.on_exhausted) == (9.0, OnExhausted.ABORT)


def test_every_timeout_of_a_recovery_can_be_set() -> None:
    config = plan(
        "--broken-collective-grace", "0", "--quiesce-timeout", "1", "--join-timeout", "2", "--reform-timeout", "3",
        "--restore-timeout", "4.5", "t.py",
    ).config  # fmt: skip
    assert (config.broken_collective_grace_s, config.quiesce_timeout_s, config.join_timeout_s) == (0.0, 1.0, 2.0)
    assert (config.reform_timeout_s, config.restore_timeout_s) == (3.0, 4.5)


def test_injections_are_numbered() -> None:
    config = plan("--nnodes", "2", "--inject", "kill-node:1@15", "--inject", "kill-rank:0@20", "t.py").config
    assert config.injections == (
        Injection(injection_id=1, kind="kill-node", target=1, step=15),
        Injection(injection_id=2, kind="kill-rank", target=0, step=20),
    )


def test_modules_and_programs() -> None:
    assert (plan("-m", "json.tool", "x").config.command, plan("-m", "json.tool").config.entry) == (
        ("json.tool", "x"), Entry.MODULE,
    )  # fmt: skip
    program = plan("--no-python", "sh", "-c", "true").config
    assert (program.command, program.entry) == (("sh", "-c", "true"), Entry.PROGRAM)


def test_paths_are_those_of_the_folder_where_the_launcher_stands() -> None:
    found = plan(
        "--log-dir", "l", "--journal", "/j", "--checkpoint-dir", "c", "--resume", "c/7", "--summary-json", "s.json", "t.py",
        folder="/elsewhere",
    )  # fmt: skip
    config = found.config
    assert (config.log_dir, config.journal, config.checkpoint_dir) == ("/elsewhere/l", "/j", "/elsewhere/c")
    assert (config.resume, found.for_supervisor) == ("/elsewhere/c/7", ["--summary-json", "/elsewhere/s.json"])


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--dashboard"], "127.0.0.1:0"),
        (["--dashboard", "8080"], "127.0.0.1:8080"),
        (["--dashboard=8080"], "127.0.0.1:8080"),
        (["--dashboard", "trainer1:8080"], "trainer1:8080"),
        (["--dashboard", "[fd00::1]:8080"], "[fd00::1]:8080"),
        (["--dashboard", "--spares", "1"], "127.0.0.1:0"),
        (["--nnodes", "2", "-r", "3", "--dashboard"], "127.0.0.1:0"),
    ],
)
def test_the_page_may_do_without_a_port(words: list[str], place: str) -> None:
    found = plan(*words, "t.py", "--dashboard", "9")
    assert found.for_supervisor == ["--dashboard", place]
    assert found.config.command == ("t.py", "--dashboard", "9")


def test_the_interpreter_is_looked_for_and_counts_the_devices() -> None:
    asked = []

    def count(kind: str, python: str) -> int:
        asked.append((kind, python))
        return 4

    config = plan("--nproc-per-node", "gpu", "t.py", variables={"PYTHON_EXEC": "python9"}, count_devices=count).config
    assert (config.python, config.nproc_per_node, asked) == ("/bin/python9", 4, [("gpu", "/bin/python9")])
    with pytest.raises(ConfigError, match="PYTHON_EXEC=python9: not found"):
        plan("t.py", variables={"PYTHON_EXEC": "python9"}, find_program=lambda name: None)


# ---------------------------------------------------------------- how the nodes are started


def test_an_allocation_s_nodes_are_the_job_s() -> None:
    found = plan("--slurm-poll", "5", "--requeue", "train.py", variables=SLURM)
    assert found.way == InAllocation(allocation=ALLOCATION, poll_s=5.0, requeue=True)
    config = found.config
    assert (config.nnodes, config.min_nnodes, config.spares, config.job_id) == (3, 3, 0, "train-7")
    assert (config.standalone, config.together) == (False, True)
    assert config.signals == "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    chosen = plan("--spares", "1", "--signals-to-handle", "SIGTERM", "--job-id", "mine", "train.py", variables=SLURM).config
    assert (chosen.nnodes, chosen.spares, chosen.signals, chosen.job_id) == (2, 1, "SIGTERM", "mine")


def test_an_allocation_is_left_alone_where_the_user_says_so() -> None:
    assert plan("--standalone", "t.py", variables=SLURM).way == Standalone()
    assert plan("--nnodes", "2", "--rdzv-endpoint", "trainer1", "t.py", variables=SLURM).way == ByHand(RENDEZVOUS)


@pytest.mark.parametrize(
    ("arguments", "seats"),
    [
        ((), (3, 3, 0)),
        (("--spares", "1"), (2, 2, 1)),
        (("--nnodes", "2"), (2, 2, 1)),
        (("--nnodes", "1:2"), (1, 2, 1)),
        (("--nnodes", "1:9"), (1, 3, 0)),
    ],
)
def test_hosts_train_or_wait(arguments: tuple[str, ...], seats: tuple[int, int, int]) -> None:
    found = plan("--hosts", "a,b,c", *arguments, "t.py")
    assert found.way == OverSsh(("a", "b", "c"))
    assert (found.config.min_nnodes, found.config.nnodes, found.config.spares) == seats
    assert (found.config.standalone, found.config.together) == (False, True)


def test_machines_that_meet() -> None:
    found = plan("--nnodes", "2", "--rdzv-endpoint", "trainer1", "--rdzv-id", "run 7!", "--metrics-port", "9", "t.py")
    assert (found.way, found.port, found.config.metrics_port) == (ByHand(RENDEZVOUS), 29400, 9)
    assert (found.config.job_id, found.config.standalone, found.config.together) == ("run-7", False, False)
    assert plan("--nnodes", "2", "--node-rank", "0", "t.py").config.job_id == "t-29400"
    assert plan("--nnodes", "1", "--rdzv-endpoint", "trainer1", "t.py").way == Standalone()
    assert plan("--standalone", "--nnodes", "2", "--rdzv_endpoint", "host:1", "t.py").way == Standalone()


@pytest.mark.parametrize(
    ("arguments", "changed", "words"),
    [
        (("--spares", "3"), {}, "--spares 3: Slurm job 7 has 3 nodes, and at least one must train"),
        (("--nnodes", "3", "--spares", "1"), {}, "4 nodes, but Slurm job 7 has 3"),
        (("--slurm", "--nnodes", "4"), {}, "--nnodes 4: 4 nodes, but Slurm job 7 has 3"),
        ((), {"SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}, "different numbers of CPUs"),
        ((), {"SLURM_HET_SIZE": "2"}, "heterogeneous"),
        ((), {"SLURM_HET_SIZE": "some"}, "SLURM_HET_SIZE=some: Slurm would set a number"),
        ((), {"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT=x: Slurm would set a number"),
        ((), {"SLURM_JOB_NODELIST": "n[1-x]"}, r"SLURM_JOB_NODELIST=n\[1-x\]: no list of nodes"),
        ((), {"SLURM_JOB_NODELIST": ""}, "do not say which nodes it has"),
        ((), {"SLURM_STEP_NUM_TASKS": "3"}, "srun has started deadpool-launch 3 times"),
        (("--netns",), {}, "--netns: the nodes of a Slurm allocation"),
        (("--hosts", "a,b"), {}, "--hosts: does not go with an allocation"),
    ],
)
def test_allocations_that_do_not_fit(arguments: tuple[str, ...], changed: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(*arguments, "t.py", variables=SLURM | changed)


def test_slurm_s_variables_without_slurm_are_named() -> None:
    with pytest.raises(ConfigError, match=r"SLURM_JOB_ID=7 .* srun is not in PATH"):
        plan("t.py", variables=SLURM, find_program=lambda name: None if name == "srun" else name)
    for option in ("--slurm", "--requeue"):
        with pytest.raises(ConfigError, match="no Slurm allocation here"):
            plan(option, "t.py")


# ---------------------------------------------------------------- what does not go together


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "--no-python"), "choose one"),
        (("--logs-specs", "mine"), "--logs-specs mine: torchrun's plugins do not run here"),
        (("--node-rank", "1"), "is --nnodes missing?"),
        (("--inject", "kill-cat:0@3"), "unknown kind 'kill-cat'"),
        (("--inject", "kill-rank:0"), "expected KIND:TARGET@STEP"),
        (("--nnodes", "2", "--nproc-per-node", "2", "--inject", "kill-rank:4@3"), r"no rank 4 \(ranks are 0\.\.3\)"),
        (("--nnodes", "2", "--spares", "1", "--inject", "kill-node:3@3"), r"no node 3 \(nodes are 0\.\.2\)"),
        (("--inject", "partition-node:0@3"), "add --netns"),
        (("--heartbeat-timeout", "1", "--heartbeat-interval", "1"), "must be longer than --heartbeat-interval"),
        (("--hang-timeout", "0.4"), r"longer than --broken-collective-grace \(0\.5\)"),
        (("--checkpoint-every", "5"), "--checkpoint-every 5: say where"),
        (("--keep", "3"), "--keep 3: say where"),
        (("--port", "7", "--metrics-port", "7"), "must differ"),
        (("--nproc-per-node", "99999"), "--nproc-per-node 99999: 1024 at most"),
        (("--nnodes", "2", "--rdzv-endpoint", "trainer1", "--port", "7"), "the supervisor listens where the machines meet"),
        (("--hosts", "a,b", "--nnodes", "2", "--spares", "1"), "2 hosts are too few"),
        (("--hosts", "a", "--spares", "1"), "1 hosts are too few for --nnodes 1 and --spares 1"),
        (("--hosts", "a,b", "--journal", "/tmp/j"), "start the job on each machine"),
        (("--hosts", "a", "--standalone"), "--hosts: does not go with --standalone"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(*arguments, "t.py")


def test_what_cannot_quite_be_had_is_said_in_a_line() -> None:
    assert plan("--h2h", "off", "--nnodes", "2", "t.py").remarks == (
        "--h2h off: nothing is replicated; a lost process comes back from its node's memory, a lost node ends the job "
        "(no --checkpoint-dir)",
    )
    assert plan("--h2h", "off", "--nnodes", "2", "t.py").config.replicas == 0
    assert plan("--replicas", "3", "--nnodes", "2", "t.py").remarks == (
        "--replicas 3: there are other nodes for 1 (--nnodes 2 and --spares 0), so that many copies are kept",
    )
    assert plan("--replicas", "3", "--nnodes", "3", "--spares", "1", "t.py").remarks == ()


def test_an_option_that_fits_no_type_is_click_s_error() -> None:
    with pytest.raises(click.BadParameter):
        plan("--nnodes", "two", "t.py")


def test_one_launcher_is_enough() -> None:
    """torchrun and accelerate launch start what they are given once for each rank."""
    rank = {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "4"}
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=4: .* has started deadpool-launch 4 times"):
        plan("t.py", variables=rank)
    assert plan("t.py", variables=rank | {"WORLD_SIZE": "1"}).way == Standalone()
    assert plan("t.py", variables={"WORLD_SIZE": "4"}).way == Standalone()
