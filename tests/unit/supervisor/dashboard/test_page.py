"""The page: one file that speaks of what there is, in colours that can be read; and what its server answers, to whom."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path

import aiohttp
import pytest

from deadpool.host.errors import ConfigError
from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RankStatus, RecoveryRecord, SpentTimes
from deadpool.proto.secret import view_key
from deadpool.supervisor.dashboard.server import Dashboard, page, serving
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.model.commands import Note
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.report.events import EVENTS

TEXT, POLICY = page()
SCRIPT = TEXT[TEXT.index("<script>") + len("<script>") : TEXT.rindex("</script>")]
STYLE = TEXT[TEXT.index("<style>") + len("<style>") : TEXT.index("</style>")]
STATUS = JobStatus(
    job_id="j", phase="run", generation=1, step=7, commit_step=6, steps_per_s=8.5, world_size=4, hooked=True, exposed_stall_s=0.0
)
TOKEN = "a secret"


# ---------------------------------------------------------------- the file


def test_nothing_comes_from_elsewhere_and_only_what_is_in_the_file_runs() -> None:
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", TEXT)
    assert not re.findall(r"\b(?:src|href)=\"(?!#)", TEXT)
    assert not re.findall(r" on\w+=|style=\"|innerHTML|outerHTML|insertAdjacentHTML|eval\(", TEXT)
    for source in (SCRIPT, STYLE):
        assert f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'" in POLICY


def test_what_the_script_looks_for_is_in_the_page() -> None:
    identities = re.findall(r'\bid="([\w-]+)"', TEXT)
    assert len(identities) == len(set(identities))
    assert set(re.findall(r'\bat\("([\w-]+)"\)', SCRIPT)) <= set(identities)
    referred = re.findall(r'(?:aria-labelledby|aria-describedby|for)="([\w -]+)"', TEXT)
    assert {each for words in referred for each in words.split()} <= set(identities)


def keys_of(table: str) -> set[str]:
    found = re.search(rf"const {table} = \{{(.*?)\}};", SCRIPT, re.S)
    assert found is not None
    return set(re.findall(r"(\w+):", found[1]))


def test_the_script_knows_every_kind_of_time_phase_and_role() -> None:
    assert keys_of("KINDS") == {each.name for each in fields(SpentTimes)} - {"node_s"}
    assert keys_of("PHASES") == {each.name for each in fields(PhaseTimes)}
    assert keys_of("TONES") == set(Phase)
    apart = re.search(r"ROLES_APART = \[(.*?)\]", SCRIPT)
    assert apart is not None
    assert set(json.loads(f"[{apart[1]}]")) == {*NodeRole, "draining"} - {"member", "spare"}


def test_the_script_names_only_fields_and_events_that_there_are() -> None:
    known = {each.name for kind in (JobStatus, NodeStatus, RankStatus, RecoveryRecord) for each in fields(kind)}
    used = re.findall(r"\b(?:status|record|node|rank)\.(\w+)\b", SCRIPT)
    own = {"class", "map", "filter"}
    assert set(used) <= known | own, set(used) - known - own
    events = {name for case in re.findall(r"^\s*case (.*?):", SCRIPT, re.M) for name in re.findall(r'"(\w+)"', case)}
    assert events - {"status", "events", "end"} <= EVENTS.keys()
    told = re.search(r"const said = \{(.*?)\}\[event\.event\]", SCRIPT, re.S)
    assert told is not None
    assert set(re.findall(r"^\s+(\w+): \(\)", told[1], re.M)) <= EVENTS.keys()


def colours(theme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    found = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[0]))
    return found if theme == "light" else found | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[1]))


def contrast(one: str, other: str) -> float:
    """Returns WCAG's ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_can_be_read(theme: str) -> None:
    of = colours(theme)
    pairs = [(text, ground) for text in ("text", "muted", "accent", "good", "warn", "bad") for ground in ("ground", "surface")]
    pairs += [("good", "good-soft"), ("warn", "warn-soft"), ("bad", "bad-soft"), ("text", "calm-soft")]
    assert {pair: ratio for pair in pairs if (ratio := contrast(of[pair[0]], of[pair[1]])) < 4.5} == {}


# ---------------------------------------------------------------- the server


@asynccontextmanager
async def served(tmp_path: Path) -> AsyncIterator[tuple[str, EventLog, aiohttp.ClientSession]]:
    file = LineFile(tmp_path / "events.jsonl")
    events = EventLog(file)
    async with serving(Dashboard(lambda: STATUS, events, TOKEN), host="127.0.0.1", port=0) as address:
        async with aiohttp.ClientSession() as session:
            yield address, events, session
        events.close()
    file.close()


def note(event: str) -> Note:
    return Note(cause="1", event=event, generation=1, fields={})


async def messages(answer: aiohttp.ClientResponse, most: int) -> list[tuple[str, dict[str, object]]]:
    found = list[tuple[str, dict[str, object]]]()
    while len(found) < most and (kind := await answer.content.readline()):
        data = await answer.content.readline()
        assert await answer.content.readline() == b"\n"
        found.append((kind.decode().removeprefix("event: ").strip(), json.loads(data.decode().removeprefix("data: "))))
    return found


def test_the_page_is_for_all_and_the_job_for_who_has_the_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def look() -> None:
        async with served(tmp_path) as (address, _, session):
            async with session.get(address) as answer:
                assert (answer.status, await answer.text()) == (200, TEXT)
                assert answer.headers["Content-Security-Policy"] == POLICY
            for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}):
                async with session.get(f"{address}/api/live?key={view_key(TOKEN)}", headers=headers) as answer:
                    assert answer.status == 401
                    assert "j" not in (await answer.text()).split()
            for key in (TOKEN, view_key(TOKEN)):
                async with session.get(f"{address}/api/live", headers={"Authorization": f"Bearer {key}"}) as answer:
                    assert answer.status == 200
            async with session.post(f"{address}/api/live", headers={"Authorization": f"Bearer {TOKEN}"}) as answer:
                assert answer.status == 405

    asyncio.run(look())
    assert capfd.readouterr().err.count("refused") == 1


def test_events_come_once_and_as_they_happen_and_the_end_is_said(tmp_path: Path) -> None:
    async def look() -> None:
        async with served(tmp_path) as (address, events, session):
            events.add(note("started"))
            events.add(note("hooked"))
            headers = {"Authorization": f"Bearer {view_key(TOKEN)}"}
            async with session.get(f"{address}/api/live?after=1", headers=headers) as answer:
                (_, past), (kind, now) = await messages(answer, 2)
                assert (past["from"], [each["event"] for each in past["events"]]) == (1, ["hooked"])  # type: ignore[attr-defined]
                assert (kind, now["status"]["step"]) == ("status", 7)  # type: ignore[index]
                events.add(note("failure"))
                while (new := (await messages(answer, 1))[0])[0] == "status":
                    pass
                assert (new[0], new[1]["from"]) == ("events", 2)
                events.close()
                kinds = [kind for kind, _ in await messages(answer, 99)]
                assert (kinds[-1], set(kinds[:-1])) == ("end", {"status"})
            async with session.get(f"{address}/api/live?after=99", headers=headers) as answer:
                assert (await messages(answer, 1))[0][1]["from"] == 0

    asyncio.run(look())


def test_a_port_that_is_taken_is_refused_and_none_that_was_not_asked_for(tmp_path: Path) -> None:
    async def look() -> None:
        async with served(tmp_path) as (address, events, _):
            taken = int(address.rpartition(":")[2])
            with pytest.raises(ConfigError, match="cannot listen there"):
                await serving(Dashboard(lambda: STATUS, events, TOKEN), host="127.0.0.1", port=taken).__aenter__()
            async with serving(Dashboard(lambda: STATUS, events, TOKEN), host="127.0.0.1", port=0) as other:
                assert other != address

    asyncio.run(look())
