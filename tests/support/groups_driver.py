"""Runs cases of the group tests: forks ranks from one process that has imported torch, orders, plans, and collects losses.

Reads a case per line (JSON) from stdin and answers with a line (JSON). In place of the supervisor it names one step for all.
"""

import gc
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import groups_rank
from groups_rank import WORLD
from stuck import ask_main_threads, threads_of
from torch._C._distributed_c10d import TCPStore

_fork = multiprocessing.get_context("fork")


def _serve_store(ready: Connection, alive: Connection) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ready.send(store.port)
    alive.poll(None)  # until the driver ends
    os._exit(0)


class Driver:
    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.generation = 1
        self.orders = 0
        self.deadline_s = time.monotonic() + case.get("timeout_s", 80)
        self.ranks: dict[int, BaseProcess] = {}
        ready, at_store = _fork.Pipe()
        self.store_process = _fork.Process(target=_serve_store, args=(at_store, at_store))
        self.store_process.start()
        self.port = ready.recv()
        self.ready = ready
        self.control = TCPStore("127.0.0.1", self.port, is_master=False, timeout=timedelta(seconds=10))
        self.random = random.Random(case.get("seed", 0))
        self.recoveries: list[float] = []
        self.lost: int | None = case["who"][0] if case["break"] in ("kill", "stop") else None  # it is lost once

    def start(self, rank: int, *, joiner: bool = False) -> None:
        case = self.case | {"generation": self.generation}
        self.ranks[rank] = _fork.Process(target=groups_rank.main, args=(rank, self.port, case, joiner))
        self.ranks[rank].start()

    def run(self) -> dict[str, Any]:
        for rank in range(WORLD):
            self.start(rank)
        if self.case["break"] == "random":
            built = [f"built/{rank}" for rank in range(WORLD)]
            self.until_set("all ranks have their model", built)  # a break before has no state to go back to
            for _ in range(self.case["breaks"]):
                after_s = self.random.random() * self.case["within_s"]
                self.order({"strike": self.random.randrange(WORLD), "after_steps": self.random.randrange(5), "after_s": after_s})
                self.recover()
            self.order({"stop": True})
        elif self.case["break"] != "none":
            self.recover()
        done = [f"done/{rank}" for rank in range(WORLD)]
        while not self.has(done):
            self.until_set("all ranks are done", done, self.broken)
            if self.has(self.broken):
                self.recover()
        self.order({"generation": 0})
        self.until_set("all results are here", [f"result/{rank}" for rank in range(WORLD)])
        for process in self.ranks.values():
            process.join(60)
        results = [json.loads(self.control.get(f"result/{rank}")) for rank in range(WORLD)]
        return {
            "losses": {rank: result["losses"] for rank, result in enumerate(results)},
            "held": [result["held"] for result in results],
            "exit_codes": [process.exitcode for process in self.ranks.values()],
            "recoveries_s": self.recoveries,
            "generation": self.generation,
            "logs": _logs(self.case["folder"]) if self.case.get("logs") else "",
        }

    def recover(self) -> None:
        """Waits for a failure, then orders new generations until one of them is open on all ranks."""
        kind, lost = self.case["break"], self.lost
        if lost is not None:
            pid = self.ranks[lost].pid
            assert pid is not None
            self.until(lambda: _state(pid) == ("Z" if kind == "kill" else "T"), f"rank {lost} is dead, or stopped")
            if kind == "stop":
                time.sleep(0.1)  # let the others run into it; nothing waits for this
        else:
            self.until_set("a rank reports the break", self.broken)
        began_s = time.monotonic()
        overtakes = self.case.get("overtakes", 0)
        while True:
            self.generation += 1
            self.order({"generation": self.generation})
            if lost is not None:
                self.ranks[lost].kill()
                self.ranks[lost].join()
                self.start(lost, joiner=True)
                self.lost = lost = None
            prepared = [f"prepared/{self.generation}/{rank}" for rank in range(WORLD)]
            self.until_set("all ranks are prepared", prepared)
            live = [step for step in (int(self.control.get(key)) for key in prepared) if step >= 0]
            self.control.set(f"plan/{self.generation}", str(min(live)))
            if overtakes:
                overtakes -= 1
                time.sleep(self.random.random() * 0.1)  # the next failure comes while the groups open, or a little later
                continue
            reformed = [f"reformed/{self.generation}/{rank}" for rank in range(WORLD)]
            self.until_set("all ranks have reformed", reformed, self.broken)
            if self.has(reformed):
                break
        self.recoveries.append(time.monotonic() - began_s)

    def order(self, order: dict[str, Any]) -> None:
        self.control.set(f"order/{self.orders}", json.dumps(order))
        self.orders += 1

    @property
    def broken(self) -> list[str]:
        """What a rank sets that reports a break of this generation."""
        return [f"broken/{self.generation}"]

    def has(self, keys: Iterable[str]) -> bool:
        return self.control.check(list(keys))

    def until_set(self, what: str, *sets: list[str]) -> None:
        """Returns when the ranks have set all keys of one of these sets."""
        self.until(lambda: any(self.has(keys) for keys in sets), what, [key for keys in sets for key in keys])

    def until(self, condition: Callable[[], bool], what: str, keys: Iterable[str] = ()) -> None:
        while not condition():
            if time.monotonic() > self.deadline_s:
                raise TimeoutError(f"generation {self.generation}: not in time: {what}\n{self.seen(keys)}")
            died = [rank for rank, process in self.ranks.items() if process.exitcode not in (None, 0)]
            if died and died != [self.lost]:
                raise RuntimeError(f"ranks {died} died while waiting until {what}")
            time.sleep(0.002)

    def seen(self, keys: Iterable[str]) -> str:
        """Returns what tells why the ranks do not get on; their main threads' stacks are in their logs then."""
        missing = [key for key in keys if not self.has([key])]
        pids = {rank: process.pid for rank, process in self.ranks.items() if process.is_alive() and process.pid is not None}
        threads = threads_of(pids)
        ask_main_threads(pids)
        time.sleep(2)  # for the stacks; whoever is too slow is left out
        return f"not set: {missing}; orders: {self.orders}; recoveries: {self.recoveries}; living ranks: {pids}\n{threads}"

    def end(self) -> None:
        for process in self.ranks.values():
            process.kill()
            process.join()
        self.ready.close()
        self.store_process.kill()
        self.store_process.join()


def _state(pid: int) -> str:
    """Returns the process' state as /proc says it; Z as well when whoever asked for its exit code has taken it away."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def _logs(folder: str) -> str:
    return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in sorted(Path(folder).glob("log-*")))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # ranks print to stderr
    gc.collect()
    gc.freeze()  # ranks are forked from here: their collector need not walk through torch
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        driver = Driver(json.loads(line))
        try:
            answer = driver.run()
        except (TimeoutError, RuntimeError) as error:
            answer = {"error": f"{error}\n{_logs(driver.case['folder'])}"}
        finally:
            driver.end()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
