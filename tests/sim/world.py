"""The simulated world: one heap of (time, number, action), one seeded random, links that delay, hold back and break."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any


class World:
    """`at` and `on` are the only ways in which anything happens later. Equal seeds give equal runs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.over = False
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        self.on(self.now_s + delay_s, action, *arguments)

    def on(self, time_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """At that time; what is set for equal times happens in the order of setting."""
        self._number += 1
        heapq.heappush(self._heap, (time_s, self._number, action, arguments))

    def between(self, low_s: float, high_s: float) -> float:
        return low_s + (high_s - low_s) * self.random.random()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def run(self, until_s: float) -> None:
        while self._heap and not self.over:
            self.now_s, _, action, arguments = heapq.heappop(self._heap)
            if self.now_s > until_s:
                return
            action(*arguments)


class Pipe:
    """One direction of a connection: messages arrive in order, some twice; a cut holds them back, a close is the last message."""

    def __init__(self, world: World, receive: Callable[[Any], None], closed: Callable[[], None]) -> None:
        self._world = world
        self._receive = receive
        self._closed = closed
        self._on_its_way: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._last_s = 0.0
        self.held_until_s = 0.0
        self.ended = False

    def send(self, message: Any, *, twice: bool = False) -> None:
        self._schedule(self._receive, message)
        if twice:
            self._schedule(self._receive, message)

    def close(self) -> None:
        self._schedule(self._arrive_close, None)

    def _schedule(self, action: Callable[[Any], None], message: Any) -> None:
        world = self._world
        self._on_its_way.append((action, message))
        self._last_s = max(self._last_s, world.now_s + world.between(0.0005, 0.01), self.held_until_s)
        world.on(self._last_s, self._next)

    def _next(self) -> None:
        """What was sent first arrives first, also of what was on its way when a cut began, or was made longer."""
        if self._world.now_s < self.held_until_s:
            self._last_s = max(self._last_s, self.held_until_s)
            self._world.on(self.held_until_s, self._next)
            return
        action, message = self._on_its_way.popleft()
        if not self.ended:
            action(message)

    def _arrive_close(self, _: None) -> None:
        self.ended = True
        self._closed()
