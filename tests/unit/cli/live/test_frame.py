"""What status shows of a job: all that matters, in 80 columns, from a handful of nodes to a thousand, with and without colour."""

import io
from dataclasses import replace

import pytest
from rich.console import Console, Group
from rich.text import Text
from statuses import RECOVERY, job, node, rank, thousand

from deadpool.cli.live.frame import frame, one_line
from deadpool.cli.live.marks import ASCII, UNICODE, Glyphs
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, ReportedNumber


def lines(status: JobStatus, *, width: int = 80, height: int | None = 40, glyphs: Glyphs = UNICODE) -> list[str]:
    return [line.plain for line in frame(status, width=width, height=height, glyphs=glyphs)]


def words(status: JobStatus, *, width: int = 80, height: int | None = 40) -> str:
    return " ".join("\n".join(lines(status, width=width, height=height)).split())


def test_all_that_matters_is_there() -> None:
    reported = (ReportedNumber(name="loss", value=2.3456789),)
    said = words(job(reported=reported, tokens_per_s=12345.0, step_times_s=(0.1, 0.2, 0.11), checkpoint_step=10))
    for part in (
        "gpt-1 run generation 2 4 ranks up 1:40", "step 16 of 100", "16.0% ETA 8 s", "9.5 steps/s 12.3k tokens/s loss 2.346",
        "step 0.11 s", "goodput 94.0%", "again 0.2 s, recovering 0.8 s", "committed 15 1 replica",
        "exposed stall 0.250 s checkpoint 10", "X 1 lost + 1 spare . 2 member", "node0 member 0 16 50 ms 60 ms 315 MB 50% - 3 GB",
        "permanent: node1 lost: its stream was closed", "spare node2 took ranks 2, 3, resumed at step 15, 1 again",
        "D detect Q quiesce G reform R restore F first step",
    ):  # fmt: skip
        assert part in said


def test_a_spare_that_keeps_replicas_says_of_whom_and_what_may_be_lost_is_said() -> None:
    nodes = (node(0, "member", rank(0), rank(1), keeps=(2,)), node(2, "member", rank(2)), node(3, "spare", keeps=(0, 1, 2)))
    said = words(job(nodes=nodes, domains_lost_max=1), height=None)
    assert "keeps the replicas of ranks 0-2" in said
    assert said.count("keeps") == 1
    assert "1 replica (any domain may be lost)" in said
    assert "(any 2 domains may be lost)" in words(job(domains_lost_max=2, replicas=2))


@pytest.mark.parametrize("status", [job(), thousand(), job(phase="recover", waiting_for="ranks 2-3: to restore the state")])
@pytest.mark.parametrize("height", [16, 24, 40, 60])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_it_fits_where_it_is_shown(status: JobStatus, height: int, glyphs: Glyphs) -> None:
    said = lines(status, height=height, glyphs=glyphs)
    assert len(said) <= height
    assert max(map(len, said)) <= 80
    assert glyphs is UNICODE or all(line.isascii() for line in said)


def test_a_recovery_between_two_looks_is_news_for_a_while() -> None:
    said = words(job(recoveries=(replace(RECOVERY, ended_s=95.0),)))
    assert "recovered 5 s ago in 0.83 s: node1 lost" in said
    assert "recovered" not in words(job(recoveries=(replace(RECOVERY, ended_s=50.0),)))
    moved = replace(RECOVERY, ended_s=99.0, failure_class="planned", cause="node1 is drained")
    assert "moved 1 s ago in 0.83 s: node1 is drained" in words(job(recoveries=(moved,)))


def test_the_bars_of_recoveries_are_as_long_as_they_took() -> None:
    long = replace(RECOVERY, generation=3, total_s=2 * RECOVERY.total_s)
    bars = [line.split()[-1] for line in lines(job(recoveries=(RECOVERY, long))) if "QQQ" in line]
    assert [len(each) for each in bars] == [40, 20]
    assert bars[1] == "QQQQQQQQQQQQGGGRFFFF"


def test_a_thousand_nodes_are_letters_the_worst_by_name() -> None:
    said = lines(thousand(), height=40)
    assert [line.strip() for line in said if ": " in line and "node" in line][:6] == [
        "X node5: lost", "X node77: lost", "? node600: no heartbeat for 5.0 s", "! node401: shm is full: 1 MiB left",
        "~ node17: rank 136 works 1.9 times as long as the median", "w node1003: 3 of 8 stand-ins wait",
    ]  # fmt: skip
    grid = {line.split()[0]: line.split()[1] for line in said if "·····" in line}
    assert grid["0"][5] == "X"
    assert grid["0"][17] == "~"
    assert grid["70"][7] == "X"
    assert grid["980"] == "·" * 20 + "+++w++++++"


def test_where_there_is_little_room_each_letter_is_the_worst_of_several() -> None:
    said = "\n".join(lines(thousand(), height=20))
    assert "each letter is the worst of" in said
    assert said.count("?") >= 2  # counted, and seen


def test_a_rank_that_is_slow_by_itself_is_marked_and_those_that_wait_for_it_are_not() -> None:
    slow = (node(0, "member", rank(0), rank(1)), node(1, "member", rank(2), rank(3, wait_s=0.01, slow_times=2.0)))
    shown = frame(job(nodes=slow, recoveries=()), width=80, height=40, glyphs=UNICODE)
    assert "~ rank 3 works 2.0 times as long as the median" in [line.plain.strip() for line in shown]
    marked = [line.plain.split()[0] for line in shown if "magenta" in _styles(line)]
    assert marked == ["nodes", "3", "~"]


def _styles(line: Text) -> str:
    return " ".join([str(line.style), *(str(span.style) for span in line.spans)])


def test_where_the_wait_is_not_known_nobody_is_called_slow() -> None:
    ranks = [rank(each, wait_s=-1.0, step_s=0.1 * (1 + each)) for each in range(8)]
    said = words(job(nodes=(node(0, "member", *ranks),)))
    assert "slow" not in said
    assert "100 ms -" not in said
    assert "7 16 0.80 s -" in said


def test_what_is_wrong_is_said_in_words_and_not_in_colour_only() -> None:
    status = job(unprotected="unprotected since step 12: rank 1: no room", waiting_for="a node for ranks 2-3", phase="recover")
    said = words(status)
    assert "waits for a node for ranks 2-3" in said
    assert "unprotected since step 12: rank 1: no room" in said
    console = Console(file=io.StringIO(), width=80, color_system=None, force_terminal=True)
    console.print(Group(*frame(status, width=80, height=30, glyphs=ASCII)))
    assert isinstance(console.file, io.StringIO)
    assert "X 1 lost" in console.file.getvalue()
    assert "\x1b[3" not in console.file.getvalue()


def test_of_a_job_that_ends_no_node_is_called_lost() -> None:
    said = words(job(phase="end", nodes=(node(0, "lost"),), recoveries=()))
    assert "the job ends" in said
    assert "lost" not in said


def test_a_job_without_hooks_says_so_and_has_no_steps() -> None:
    said = words(job(hooked=False, step=NO_STEP, commit_step=NO_STEP, recoveries=(), until=0))
    assert "without hooks" in said
    assert "step - 9.5 steps/s" in said


def test_a_lost_node_says_why_and_since_when_and_that_no_spare_is_left() -> None:
    lost = node(1, "lost", lost_why="its stream was closed", lost_ago_s=72.0)
    status = job(nodes=(node(0, "member", rank(0)), lost), spares=1)
    assert "X lost 1:12 ago: its stream was closed" in words(status)
    assert "no spare is left of 1" in words(status)
    assert "no spare is left" not in words(job(spares=1))
    assert "no spare is left" not in words(job(nodes=(node(0, "member", rank(0)),)))


def test_gpus_are_shown_with_their_memory() -> None:
    said = words(job(nodes=(node(0, "member", rank(0), gpu_busy_share=0.98, gpu_memory_share=0.744),)))
    assert "50% 98/74% 3 GB" in said


def test_the_letters_are_explained_that_are_drawn() -> None:
    long = replace(RECOVERY, phases_s=replace(RECOVERY.phases_s, plan=1e-4, quiesce=60.0), total_s=60.8)
    assert "recoveries 1 Q quiesce g2" in words(job(recoveries=(long,)))


def test_a_long_name_of_a_node_keeps_its_end() -> None:
    named = (node(0, "member", rank(0), node_id="trainer-in-the-far-east-of-the-hall-0017"),)
    assert [line.split()[0] for line in lines(job(nodes=named)) if " member " in line] == ["f-the-hall-0017"]


def test_where_nothing_can_be_painted_over_a_line_says_it() -> None:
    said = one_line(job(recoveries=(replace(RECOVERY, ended_s=95.0),)))
    assert said.startswith("gpt-1  run  generation 2")
    assert "step 16 of 100  9.5 steps/s  committed 15" in said
    assert "recovered 5 s ago" in said
