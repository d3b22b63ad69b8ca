"""JobConfig travels as JSON; injections are parsed with an answer that says what is wrong."""

import json
from dataclasses import fields, replace
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.host.errors import ConfigError
from deadpool.proto.config import (
    INJECTION_KINDS,
    Entry,
    Injection,
    JobConfig,
    Keeping,
    OnExhausted,
    Readiness,
    from_json,
    keeping_from_json,
    keeping_to_json,
    not_possible,
    parse_injection,
    stop_signals,
    to_json,
)

INJECTIONS = st.builds(
    Injection,
    injection_id=st.integers(1, 99),
    kind=st.sampled_from(INJECTION_KINDS),
    target=st.integers(0, 9999),
    step=st.integers(0, 10**9),
).filter(lambda injection: not not_possible(injection.kind, injection.target, injection.step))


@given(st.builds(JobConfig, command=st.lists(st.text()).map(tuple), injections=st.lists(INJECTIONS).map(tuple)))
def test_a_configuration_survives_json(config: JobConfig) -> None:
    assert from_json(to_json(config)) == config


@given(st.builds(JobConfig, command=st.lists(st.text()).map(tuple), injections=st.lists(INJECTIONS).map(tuple)))
def test_a_rank_is_told_its_part_of_it(config: JobConfig) -> None:
    told = keeping_from_json(keeping_to_json(config))
    for field in fields(Keeping):
        assert getattr(told, field.name) == getattr(config, field.name)


def test_every_signal_that_would_end_the_launcher_ends_the_job() -> None:
    plain = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, command=("t",), python="p", log_dir="/l")
    assert set(stop_signals(plain)) == {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}
    checkpoints = replace(plain, checkpoint_dir="/c")  # SIGUSR1 asks for one
    assert SIGUSR1 not in stop_signals(checkpoints)
    assert SIGUSR1 in stop_signals(replace(checkpoints, signals="SIGTERM, SIGUSR1"))


def test_enums_come_back_as_enums() -> None:
    config = from_json(
        to_json(JobConfig(job_id="j", nnodes=2, nproc_per_node=3, command=("t.py",), python="python", log_dir="/l"))
    )
    assert (type(config.entry), type(config.on_exhausted), type(config.spare_readiness)) == (Entry, OnExhausted, Readiness)
    assert config.world_size == 6


@given(INJECTIONS)
def test_an_injection_is_read_as_it_is_written(injection: Injection) -> None:
    text = f"{injection.kind}:{injection.target}@{injection.step}"
    assert parse_injection(text, injection.injection_id) == injection


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill-cat:1@2", "unknown kind 'kill-cat'; known: kill-node, "),
        ("", "unknown kind ''"),
        ("kill-node", "expected KIND:TARGET@STEP"),
        ("kill-node:1", "expected KIND:TARGET@STEP"),
        ("kill-node@1", "expected KIND:TARGET@STEP"),
        ("kill-rank:-1@2", "expected KIND:TARGET@STEP"),
        ("kill-rank:one@2", "expected KIND:TARGET@STEP"),
        ("kill-rank:1@", "expected KIND:TARGET@STEP"),
        ("kill-rank:1@2@3", "expected KIND:TARGET@STEP"),
        ("kill-spare:1@2", "kill-spare has no target: write 0"),
        ("thaw-rank:1@2", "thaw-rank cannot wait for a step"),
    ],
)
def test_what_is_no_injection_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--inject") as caught:
        parse_injection(text, 1)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({"package": "9.9", "protocol": 9}, r"has DeadPool 9\.9 \(protocol 9\), here is .* \(protocol"),
        (None, "of an older version"),
        ({"package": 9}, "of an older version"),
    ],
)
def test_another_versions_configuration_is_refused_by_a_line_that_names_both(written: object, reason: str) -> None:
    config = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, command=("t",), python="p", log_dir="/l")
    with pytest.raises(ConfigError, match=reason):
        from_json(json.dumps({"of": "then", **json.loads(to_json(config)), "version": written}))
