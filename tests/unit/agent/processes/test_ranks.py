"""The end of a rank's process, as its agent reports it."""

import asyncio
import os
from pathlib import Path
from typing import cast

from deadpool.agent.logs.routing import file_only
from deadpool.agent.logs.writer import Logs
from deadpool.agent.processes.ranks import Processes
from deadpool.agent.processes.warm import WarmProcess


class NoWarmProcess:
    """The test forks."""

    outstanding = False

    def fork(self, *_: object) -> None:
        pass


def test_the_news_of_its_end_comes_after_its_last_words_however_late_these_are_heard(tmp_path: Path) -> None:
    happened: list[object] = []

    async def an_end() -> None:
        over = asyncio.Event()

        async def silent(_: int) -> None:
            await asyncio.sleep(0.5)  # as the loop of a busy agent: longer than it takes to see that a process is dead
            happened.append("the last words")

        def exited(number: int, end: object) -> None:
            happened.append(number)
            over.set()

        processes = Processes(
            cast(WarmProcess, NoWarmProcess()),
            error_path=lambda _: tmp_path / "no-error.json",
            silent=silent,
            on_forked=lambda _number, _pid: None,
            on_exited=exited,
        )
        logs = Logs(tmp_path, 1 << 20)
        processes.start(3, {}, logs.open(file_only("rank")))
        processes.forked(3, os.posix_spawn("/bin/true", ["true"], {}))
        await over.wait()
        await processes.end_all(1.0, 15)
        logs.close(1.0)

    asyncio.run(an_end())
    assert happened == ["the last words", 3]
