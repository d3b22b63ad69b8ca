"""How a task that belongs to a stream is ended with it."""

import asyncio
from typing import Any


async def cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancels it and waits for its end, whatever that is; whoever waits here can be cancelled meanwhile."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it was looked at: the stream's own end says why
