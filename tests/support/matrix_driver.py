"""Runs the matrix' cells: two rank processes that stay for many of them, and are forked anew after one that fails.

Started by tests/matrix: reads a cell per line (JSON) from stdin and answers with a line (JSON), its outcome. It imports torch
once, and itself computes nothing, so that its forks may.
"""

import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Collection
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import matrix_rank
from stuck import ask_main_threads, threads_of
from torch._C._distributed_c10d import TCPStore

CELL_LIMIT_S = 150.0  # two seconds; a busy machine may need much longer
_fork = multiprocessing.get_context("fork")


class Ranks:
    """The two processes. `folder`: for their vaults."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._store: TCPStore | None = None
        self._processes: list[BaseProcess] = []
        self._lines: list[Connection] = []

    def run(self, parallel: str, pieces: Collection[str]) -> dict[str, str]:
        """Returns {"kind": same | differs | refused | error | stuck, "problem": "" when all was the same}."""
        if not self._processes:
            self._start()
        for line in self._lines:
            line.send({"parallel": parallel, "pieces": pieces})
        deadline_s, answers, waiting = time.monotonic() + CELL_LIMIT_S, [], list(self._lines)
        while waiting and (left_s := deadline_s - time.monotonic()) > 0:
            ready = wait(waiting, left_s)
            answers += [_answer(line) for line in waiting if line in ready]
            waiting = [line for line in waiting if line not in ready]
            if any(each["kind"] != "same" for each in answers):
                break
        bad = [each for each in answers if each["kind"] != "same"]
        if waiting and not bad:
            pids = {rank: process.pid for rank, process in enumerate(self._processes) if process.pid is not None}
            threads = threads_of(pids)
            ask_main_threads(pids)  # stacks to stderr
            self._processes[0].join(2)
            bad = [{"kind": "stuck", "problem": f"no end within {CELL_LIMIT_S} s\n{threads}"}]
        if bad:
            self.end()
        return (bad or answers)[0]

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for line in self._lines:
            line.close()
        self._processes, self._lines, self._store = [], [], None

    def _start(self) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        folder = tempfile.mkdtemp(dir=self._folder)
        for rank in range(matrix_rank.WORLD):
            ours, theirs = _fork.Pipe()
            process = _fork.Process(target=matrix_rank.serve, args=(rank, self._store.port, folder, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._lines.append(ours)


def _answer(line: Connection) -> dict[str, str]:
    try:
        answer: dict[str, str] = line.recv()
    except EOFError:
        return {"kind": "error", "problem": "a rank's process has ended"}
    return answer


def main() -> None:
    ranks = Ranks(sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    for order in sys.stdin:
        cell = json.loads(order)
        print(json.dumps(ranks.run(cell["parallel"], cell["pieces"])), flush=True)
    ranks.end()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
