"""`deadpool diagnose`: groups, calls and stacks, read for a person."""

from deadpool.cli.commands.diagnose import GroupWaits, diagnosis_lines, group_waits, main_thread, past_lines, stack_lines
from deadpool.proto.messages import GroupCall, RankCalls
from deadpool.proto.messages.status import Diagnosis

STACK = """\
Stack (most recent call first):
  File "/lib/torch/distributed.py", line 100 in all_reduce
  File "/work/train.py", line 42 in train_step
  File "/work/train.py", line 60 in <module>
"""


def calls(rank: int, entered: int, completed: int, *, group: str = "world", stopped: bool = False) -> RankCalls:
    call = GroupCall(group=group, operation="allreduce", entered=entered, completed=completed)
    return RankCalls(rank=rank, pid=1, step=9, groups=(call,), stopped=stopped)


def test_who_is_in_a_call_and_who_has_not_come_to_it() -> None:
    ranks = [calls(0, 12, 11), calls(1, 12, 11), calls(2, 11, 11), calls(4, 3, 3, group="dp"), calls(5, 3, 2, group="dp")]
    assert group_waits(ranks) == [
        GroupWaits(group="world", call=12, operation="allreduce", inside=(0, 1), absent=(2,)),
        GroupWaits(group="dp", call=3, operation="allreduce", inside=(5,), absent=()),
    ]


def test_of_a_job_that_gets_on_ranks_may_be_in_different_calls_of_a_group() -> None:
    ranks = (calls(0, 12, 11), calls(1, 11, 10), calls(2, 11, 11))
    nodes = {0: "node0", 1: "node0", 2: "node1"}
    assert diagnosis_lines(Diagnosis(generation=1, ranks=ranks), nodes, {}, moved=(9, 12))[1:] == [
        "group world: call 12 (allreduce)",
        "  waiting in it   rank 0 on node0",
        "  not there yet   ranks 1-2 on node0, node1",
        "    of these in an earlier call of it: rank 1 on node0",
        "in no call: rank 2 on node1",
    ]


def test_a_hang_is_told_with_nodes_and_stacks() -> None:
    ranks = (calls(0, 12, 11), calls(1, 12, 11), calls(2, 11, 11), calls(3, 12, 11, stopped=True))
    diagnosis = Diagnosis(generation=1, ranks=ranks, missing=("node7",), why="rank 2 has not entered call 12 of world")
    nodes = {0: "node0", 1: "node0", 2: "node1", 3: "node1"}
    lines = diagnosis_lines(diagnosis, nodes, {2: STACK}, moved=(9, 9))
    assert lines == [
        "node7 has not answered",
        "rank 2 has not entered call 12 of world",
        "group world: call 12 (allreduce)",
        "  waiting in it   ranks 0-1, 3 on node0, node1",
        "  not there yet   rank 2 on node1",
        "in no call: rank 2 on node1",
        "stopped by a signal or a debugger: rank 3 on node1",
        "rank 2, the newest call first:",
        "  all_reduce (/lib/torch/distributed.py:100)",
        "  train_step (/work/train.py:42)",
        "  <module> (/work/train.py:60)",
    ]


def test_a_job_that_gets_on_is_not_said_to_hang() -> None:
    lines = diagnosis_lines(Diagnosis(generation=1, ranks=(calls(0, 2, 2),)), {0: "node0"}, {}, moved=(9, 12))
    assert lines == [
        "the job gets on (step 9 to 12 while this was asked): nobody is waited for long", "in no call: rank 0 on node0",
    ]  # fmt: skip


def test_ranks_at_the_same_place_are_named_together_the_rare_place_first() -> None:
    other = STACK.replace("train_step", "evaluate")
    lines = stack_lines({0: STACK, 1: STACK, 2: other, 3: STACK, 4: ""})
    assert [line for line in lines if line.startswith("rank")] == [
        "rank 2, the newest call first:", "rank 4, the newest call first:", "ranks 0-1, 3, the newest call first:",
    ]  # fmt: skip
    assert "  no Python stack" in lines


def test_a_deep_stack_is_shortened() -> None:
    assert main_thread(STACK)[-1] == "<module> (/work/train.py:60)"
    assert main_thread("") == ()
    between = "".join(f'  File "/lib/{number}.py", line 1 in f\n' for number in range(12))
    deep = main_thread(STACK.replace('  File "/work/train.py", line 42', f'{between}  File "/work/train.py", line 42'))
    assert len(deep) == 11
    assert deep[5] == "... 5 more"


def test_after_the_end_the_events_tell_what_failed() -> None:
    assert past_lines([{"event": "started"}]) == ["its events tell of no failure and no end"]
    told = past_lines(
        [
            {"event": "hang", "time": "2026-01-01T12:00:00.000+00:00", "generation": 1, "stalled_s": 31.0,
             "reason": "has not entered call 12", "stacks": ["/logs/node1/stacks-rank-2-gen1.txt"]},
            {"event": "failure", "time": "2026-01-01T12:00:01.000+00:00", "generation": 1, "cause": "rank 2 hangs",
             "failure_class": "transient"},
            {"event": "job_ended", "time": "2026-01-01T12:01:00.000+00:00", "generation": 2, "exit_code": 0, "reason": "done"},
        ]
    )  # fmt: skip
    assert told == [
        "12:00:00  g1  no step for 31.0 s: has not entered call 12",
        "    stacks: /logs/node1/stacks-rank-2-gen1.txt",
        "12:00:01  g1  recovered from: rank 2 hangs (transient)",
        "12:01:00  g2  ended with exit code 0: done",
    ]
