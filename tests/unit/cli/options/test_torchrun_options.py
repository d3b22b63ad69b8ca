"""deadpool-launch has every option of the installed torch's torchrun: both spellings, its variable, a line in the docs' table."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from command_line import plan
from torch.distributed.argparse_util import check_env, env
from torch.distributed.run import get_args_parser

from deadpool.agent.logs.routing import rank_routes
from deadpool.agent.processes.environment import rank_environment
from deadpool.cli import launch
from deadpool.cli.options.devices import count_devices
from deadpool.host.errors import ConfigError
from deadpool.proto.config import Entry, JobConfig
from deadpool.proto.messages import Placement
from deadpool.proto.streams import STDERR, STDOUT, streams_of

TABLE = Path(__file__).parents[4] / "docs" / "torchrun-options.md"


def theirs() -> Iterator[argparse.Action]:
    return (each for each in get_args_parser()._actions if each.option_strings and each.dest != "help")


def ours() -> dict[str, click.Option]:
    options = (each for each in launch.launch.params if isinstance(each, click.Option))
    return {opt: option for option in options for opt in option.opts}


@pytest.mark.parametrize("action", list(theirs()), ids=lambda action: action.dest)
def test_every_option_of_torchrun(action: argparse.Action) -> None:
    for spelling in action.option_strings:
        option = ours().get(f"--{spelling[2:].replace('_', '-')}" if spelling.startswith("--") else spelling)
        assert option is not None, (
            f"torchrun has {spelling}: add it to settings.py or torchrun.py in cli/options, and to {TABLE.name}"
        )
        assert option.is_flag == (action.nargs == 0), spelling
        if isinstance(action, env | check_env):
            assert f"PET_{action.dest.upper()}" in [option.envvar, *(option.envvar or [])], spelling
    assert f"`{action.option_strings[0]}" in TABLE.read_text()


def test_the_table_lists_nothing_else() -> None:
    rows = [line.split("`")[1].split()[0].rstrip(",") for line in TABLE.read_text().splitlines() if line.startswith("| `-")]
    assert sorted(rows) == sorted(action.option_strings[0] for action in theirs())


def parse(*arguments: str) -> tuple[JobConfig, list[str]]:
    found = plan(*arguments)
    return found.config, list(found.remarks)


def test_values() -> None:
    config, remarks = parse(
        "--nnodes=2:4", "--nproc_per_node=2", "--role", "trainer", "-r", "0:3", "-t", "2", "--local_ranks_filter", "0,1",
        "--duplicate_stdout_filters", "a,,b,c", "--virtual-local-rank", "--numa-binding", "node", "--shutdown-timeout", "7",
        "--signals_to_handle", "SIGTERM,SIGUSR1", "--rdzv_id", "job 7", "--start_method", "fork", "--run-path", "--no-python",
        "t.py",
    )  # fmt: skip
    assert remarks == []
    assert (config.min_nnodes, config.nnodes, config.nproc_per_node) == (2, 4, 2)
    assert (config.role, config.redirects, config.tee, config.local_ranks_filter) == ("trainer", "0:3", "2", (0, 1))
    assert (config.stdout_filters, config.virtual_local_rank, config.numa_binding) == (("a,b", "c"), True, "node")
    assert (config.stop_grace_s, config.signals, config.run_id) == (7.0, "SIGTERM,SIGUSR1", "job 7")
    assert (config.start_method, config.entry) == ("forkserver", Entry.SCRIPT)


def test_variables_of_flags_and_short_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODULE", "0"), ("TEE", "3"), ("NNODES", "1:2"), ("VIRTUAL_LOCAL_RANK", "1"), ("STANDALONE", "1")):
        monkeypatch.setenv(f"PET_{name}", value)
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9")
    config, _ = parse("t.py")
    assert (config.entry, config.tee, config.nnodes, config.virtual_local_rank) == (Entry.SCRIPT, "3", 2, True)
    assert config.stop_grace_s == 9.0


def test_what_changes_nothing_is_said_in_a_line_each() -> None:
    _, remarks = parse(
        "--rdzv-backend", "etcd-v2", "--rdzv-conf", "timeout=3", "--monitor-interval", "1", "--event-log-handler", "console",
        "--master-port", "29501", "--master-addr", "127.0.0.1", "--node-rank", "0", "t.py",
    )  # fmt: skip
    assert [remark.split()[0].rstrip(":") for remark in remarks] == [
        "--rdzv-backend", "--rdzv-conf", "--monitor-interval", "--event-log-handler", "--master-port",
    ]  # fmt: skip
    assert parse("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--monitor-interval", "1", "t.py")[1] == [
        "--monitor-interval: not used, the end of a rank is seen immediately"
    ]


def test_devices_are_counted(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho a warning; echo 8\n")
    python.chmod(0o755)
    assert count_devices("gpu", str(python)) == 8
    assert count_devices("cpu", "not asked") >= 1
    python.write_text("#!/bin/sh\necho 0\n")
    with pytest.raises(ConfigError, match="--nproc-per-node xpu: there is none here"):
        count_devices("xpu", str(python))
    python.write_text("#!/bin/sh\necho No module named torch >&2; exit 1\n")
    with pytest.raises(ConfigError, match="cannot count: No module named torch"):
        count_devices("auto", str(python))


@pytest.mark.parametrize(
    ("text", "expected"), [("0", (0, 0, 0)), ("3", (3, 3, 3)), ("1:1", (0, 1, 0)), ("0:3,2:2", (3, 0, 2)), ("10:1", (0, 0, 0))]
)
def test_streams(text: str, expected: tuple[int, int, int]) -> None:
    assert tuple(streams_of(text, local_rank) for local_rank in range(3)) == expected


def job(**settings: object) -> JobConfig:
    return JobConfig(job_id="j", nnodes=2, nproc_per_node=2, command=("t",), python="p", log_dir="/l", **settings)  # type: ignore[arg-type]


def test_views_without_options_keep_and_show_all() -> None:
    routes = rank_routes(job(), 3, 7, "0", "")
    assert (routes.name, routes.prefix, set(routes.console)) == ("rank-3-gen7.log", b"[rank 3] ", {STDOUT, STDERR})
    assert (routes.files, routes.filters, routes.error_file) == ({}, {}, "rank-3-gen7.error.json")


def test_views_with_torchruns_options() -> None:
    config = job(redirects="1:3", tee="0:1,1:2", local_ranks_filter=(1,), stdout_filters=("x",), stderr_filters=("y",), role="r")
    zero, one = rank_routes(config, 2, 1, "4", ""), rank_routes(config, 3, 1, "4", "${role_name}/${rank}/${local_rank}:")
    assert (set(zero.console), set(one.console)) == (set(), {STDERR})  # filtered out; stdout redirected, stderr teed
    assert zero.files == {STDOUT: "attempt_4/0/stdout.log"}
    assert one.files == {STDOUT: "attempt_4/1/stdout.log", STDERR: "attempt_4/1/stderr.log"}
    assert zero.filters == {STDOUT: ("attempt_4/filtered_stdout.log", (b"x",))}
    assert one.filters == {STDERR: ("attempt_4/filtered_stderr.log", (b"y",))}
    assert (one.prefix, one.error_file) == (b"r/3/1:", "attempt_4/1/error.json")


@pytest.mark.parametrize(("visible", "own"), [("", "1"), ("4,6", "6"), ("GPU-a, GPU-b", "GPU-b")])
def test_virtual_local_ranks_see_their_own_gpu(visible: str, own: str) -> None:
    placement = Placement(rank=3, local_rank=1, node_id="n", node_rank=1, holders=())
    config = job(virtual_local_rank=True, role="r")
    seen = rank_environment(
        config, placement, world_size=4, master_node_count=2, restart_count=0, visible_devices=visible
    )  # fmt: skip
    assert (seen["RANK"], seen["LOCAL_RANK"], seen["CUDA_VISIBLE_DEVICES"], seen["ROLE_NAME"]) == ("3", "0", own, "r")
