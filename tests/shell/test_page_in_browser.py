"""The page in a real browser, over a job that the test makes up: what people see, hear and can reach with the keyboard."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import browser, opened_page

from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RankStatus, RecoveryRecord, SpentTimes
from deadpool.proto.secret import view_key
from deadpool.supervisor.dashboard.server import Dashboard, serving
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.model.commands import Note, Value

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TOKEN = "a secret"
KEY = view_key(TOKEN)


def node(index: int, role: str, *ranks: int, slow: bool = False) -> NodeStatus:
    playing = tuple(
        RankStatus(
            rank=rank,
            pid=rank + 1,
            step=40,
            commit_step=39,
            exposed_stall_s=0.0,
            step_s=0.5,
            wait_s=0.02 if slow else 0.4,
            slow_times=4.8 if slow else 0.0,
        )
        for rank in ranks
    )
    return NodeStatus(
        node_id=f"node{index}", index=index, role=role, host="10.0.0.1", heartbeat_age_s=0.2, cpu_share=0.5, memory_share=0.4,
        shm_free_bytes=1 << 30, standins_ready=2, ranks=playing,
    )  # fmt: skip


STATUS = JobStatus(
    job_id="a-job", phase="run", generation=1, step=40, commit_step=39, steps_per_s=8.5, world_size=4, hooked=True,
    exposed_stall_s=0.25, nodes=(node(0, "member", 0, 1), node(1, "member", 2, 3), node(2, "spare")), until=100, replicas=1,
    spent_s=SpentTimes(assembling=1.0, starting=3.0, productive=16.0, node_s=60.0),
)  # fmt: skip
RECOVERY = RecoveryRecord(
    generation=2, cause="node1 lost: its stream was closed", failure_class="permanent", node="node1", ranks=(2, 3), spare="node2",
    moved=(2, 3), resume_step=40, steps_reexecuted=1, survivors_kept_processes=True, committed_steps_lost=0, total_s=0.56,
    phases_s=PhaseTimes(detect=0.01, quiesce=0.3, restore=0.1, first_step=0.15),
)  # fmt: skip


class MadeUpJob:
    """`status` and `note` from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, events: EventLog, address: str) -> None:
        self._loop, self._events, self.address = loop, events, address
        self.status = STATUS

    def note(self, event: str, generation: int = 1, **fields: Value) -> None:
        note = Note(cause="1", event=event, generation=generation, fields=fields)
        asyncio.run_coroutine_threadsafe(self._add(note), self._loop).result(60)

    async def _add(self, note: Note) -> None:
        self._events.add(note)

    def is_lost_and_recovers(self) -> None:
        """Node 1 is lost, node 2 takes its place: over before anybody could see it in between."""
        lost = replace(node(1, "lost"), lost_why="its stream was closed", lost_ago_s=3.2)
        swapped = (node(0, "member", 0, 1), lost, node(2, "member", 2, 3))
        self.status = replace(STATUS, generation=2, step=41, nodes=swapped, recoveries=(RECOVERY,))
        self.note("failure", cause="node1 lost: its stream was closed", failure_class="permanent", node="node1", ranks=(2, 3))
        self.note("generation", 2, reason="node1 lost", members=("node0", "node2"))
        self.note(
            "recovered", 2, cause="node1 lost: its stream was closed", failure_class="permanent", ranks=(2, 3), spare="node2",
            moved=(2, 3), resume_step=40, steps_reexecuted=1, total_s=0.5600834,
        )  # fmt: skip


@contextmanager
def made_up_job(folder: Path) -> Iterator[MadeUpJob]:
    file = LineFile(folder / "events.jsonl")
    events, loop, made = EventLog(file), asyncio.new_event_loop(), list[MadeUpJob]()
    ready, done = threading.Event(), asyncio.Event()

    async def serve() -> None:
        ask: Callable[[], JobStatus] = lambda: made[0].status  # noqa: E731
        async with serving(Dashboard(ask, events, TOKEN), host="127.0.0.1", port=0) as address:
            made.append(MadeUpJob(loop, events, address))
            ready.set()
            await done.wait()
            events.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        made[0].note("generation", reason="start", members=("node0", "node1"))
        made[0].note("started")
        yield made[0]
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(60)
        loop.close()
        file.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[MadeUpJob]:
    with made_up_job(tmp_path) as job:
        yield job


@pytest.fixture
def window() -> "Iterator[Browser]":
    with browser() as window:
        yield window


def test_without_the_key_nothing_of_the_job_is_shown(job: MadeUpJob, window: "Browser") -> None:
    with opened_page(window, job.address) as page:
        page.get_by_label("Key").fill("not it")
        page.keyboard.press("Enter")
        page.get_by_role("alert").filter(has_text="This is not the key of this job.").wait_for()
        assert "a-job" not in page.content()
        assert page.get_by_role("main").count() == 0
        page.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="a-job").wait_for()
        page.reload()  # the tab remembers it
        page.get_by_role("heading", name="a-job").wait_for()


def test_a_swap_that_is_over_in_no_time_is_seen_and_said(job: MadeUpJob, window: "Browser") -> None:
    with opened_page(window, f"{job.address}/#key={KEY}") as page:
        page.get_by_role("heading", name="a-job").wait_for()
        assert KEY not in page.url
        page.get_by_text("No recovery so far.").wait_for()
        job.is_lost_and_recovers()
        row = page.get_by_role("row").filter(has_text="node1 lost")
        row.wait_for()
        assert "node2 took ranks 2, 3" in row.inner_text()
        assert row.get_by_role("img", name="detect 0.01 s, quiesce 0.30 s, restore 0.10 s, first step 0.15 s").count() == 1
        said = page.get_by_role("region", name="Events, the newest first")
        said.filter(has_text="moved 2, 3 · resume step 40 · steps reexecuted 1 · total s 0.5601").wait_for()
        page.get_by_role("log").filter(has_text="Recovered in 0.56 s, resumed at step 40").wait_for(state="attached")
        page.get_by_role("img", name="2 generations, 1 recovery").wait_for()
        page.get_by_role("row").filter(has_text="node1").last.get_by_role("cell", name="lost").wait_for()
        page.get_by_text("3.20 s ago: its stream was closed").wait_for()


def test_pause_holds_the_view_and_the_end_is_said(job: MadeUpJob, window: "Browser") -> None:
    with opened_page(window, f"{job.address}/#key={KEY}") as page:
        page.get_by_text("No recovery so far.").wait_for()
        page.get_by_role("button", name="Pause").click()
        job.is_lost_and_recovers()
        page.get_by_role("log").filter(has_text="Recovered").wait_for(state="attached")  # it has come
        assert page.get_by_text("No recovery so far.").is_visible()
        page.get_by_role("button", name="Go on").click()
        page.get_by_role("row").filter(has_text="node1 lost").wait_for()
        job.status = replace(job.status, phase="end")
        job.note("job_ended", 2, exit_code=1, reason="rank 0 failed")
        page.get_by_role("status").filter(has_text="The job has failed (exit code 1): rank 0 failed").wait_for()


def test_a_slow_rank_is_named_and_how_full_gpus_are(job: MadeUpJob, window: "Browser") -> None:
    busy = replace(node(0, "member", 0, 1), gpu_busy_share=0.98, gpu_memory_share=0.744)
    job.status = replace(STATUS, nodes=(busy, node(1, "member", 2, 3, slow=True), node(2, "spare")))
    with opened_page(window, f"{job.address}/#key={KEY}") as page:
        page.get_by_text("ranks 2, 3 are slow").wait_for()
        page.get_by_text("memory 74 %").wait_for()


def test_landmarks_tables_and_focus(job: MadeUpJob, window: "Browser") -> None:
    with opened_page(window, f"{job.address}/#key={KEY}") as page:
        job.is_lost_and_recovers()
        page.get_by_role("table", name="Recoveries").wait_for()
        page.get_by_role("log").filter(has_text="Recovered").wait_for(state="attached")  # nothing more comes
        for role in ("banner", "main"):
            assert page.get_by_role(role).count() == 1
        regions = page.get_by_role("region")
        names = {regions.nth(at).get_attribute("aria-label") or "" for at in range(regions.count())}
        assert {"Recoveries", "Nodes", "Events, the newest first"} <= names
        assert page.get_by_role("heading", level=1).count() == 1
        assert page.get_by_role("columnheader", name="Step time").count() == 1
        assert page.get_by_role("rowheader", name="node0").count() == 1
        reached = []
        for _ in range(6):
            page.keyboard.press("Tab")
            reached.append(
                page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")
            )
        assert reached[:5] == ["Skip to the job", "Pause", "Recoveries", "Nodes", "Events, the newest first"]
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        page.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Shift+Tab")
        assert page.evaluate(outline) == "solid"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_telephone_in_both_themes(job: MadeUpJob, window: "Browser", theme: str) -> None:
    job.status = replace(STATUS, nodes=tuple(node(at, "member", 2 * at, 2 * at + 1) for at in range(100)))
    with opened_page(window, f"{job.address}/#key={KEY}", width=360, theme=theme) as page:
        page.get_by_role("rowheader", name="node0").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert ground == {"light": "rgb(251, 251, 250)", "dark": "rgb(17, 20, 26)"}[theme]
        page.get_by_role("img", name="100 nodes live, 0 need attention").wait_for()
        page.get_by_text("and 84 more").wait_for()
