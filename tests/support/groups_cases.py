"""The test's end of the group driver: starts it once for many cases (one import of torch), sends cases, reads answers."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

_DRIVER = Path(__file__).with_name("groups_driver.py")


class Cases:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._unbroken: dict[tuple[str, int], dict[str, dict[str, str]]] = {}

    def run(self, **case: Any) -> dict[str, Any]:
        """Runs one case with four real ranks and returns the driver's answer; fails with the ranks' logs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            defaults = {"kind": "ddp", "break": "none", "where": "forward", "who": [], "at": 3, "steps": 8, "folder": folder}
            self._process.stdin.write(json.dumps(defaults | case) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return cast(dict[str, Any], answer)

    def unbroken(self, kind: str, steps: int = 8) -> dict[str, dict[str, str]]:
        """Returns the losses of an unbroken run: rank -> step -> hex."""
        if (kind, steps) not in self._unbroken:
            self._unbroken[kind, steps] = self.run(kind=kind, steps=steps)["losses"]
        return self._unbroken[kind, steps]


@contextmanager
def group_cases() -> Iterator[Cases]:
    # TCPStore looks up the name of every peer that connects; where the answer gets lost it would wait for 5 s.
    environment = os.environ | {"RES_OPTIONS": "timeout:1 attempts:1"}
    process = subprocess.Popen(
        [sys.executable, str(_DRIVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Cases(process)
    finally:
        process.kill()
        process.communicate()
