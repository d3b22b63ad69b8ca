"""Does every process of a job end well? The example with 8 steps, again and again: ZeRO and FSDP2 in turns.

    python benchmarks/exits.py [--runs 200] [--first 0] > exits.json

A run is good when the job's exit code is 0, nothing was recovered, no process died of a signal, and each rank has written each of
its lines once. What went wrong in the others is listed. Progress goes to stderr, JSON to stdout.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "examples" / "train_gpt.py"
KINDS = ("zero", "fsdp")
NODES, RANKS_PER_NODE, STEPS = 2, 2, 8
LINES = NODES * RANKS_PER_NODE * (STEPS + 1)  # a loss for each step, and a digest
_TIMEOUT_S = 120


def run(kind: str, folder: Path) -> list[str]:
    """Runs one job and returns what was wrong with it."""
    lines, summary, logs = folder / "lines", folder / "summary.json", folder / "logs"
    command = [
        sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nnodes", str(NODES),
        "--nproc-per-node", str(RANKS_PER_NODE), "--log-dir", str(logs), "--summary-json", str(summary),
        str(SCRIPT), "--parallel", kind, "--steps", str(STEPS), "--loss-log", str(lines), "--digest", str(folder / "digests"),
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S
    )
    written = lines.read_text().splitlines() + (folder / "digests").read_text().splitlines()
    text = ended.stdout.decode(errors="replace") + "".join(log.read_text(errors="replace") for log in logs.rglob("rank-*.log"))
    return found(ended.returncode, text, json.loads(summary.read_text()), written)


def found(exit_code: int, text: str, summary: dict[str, Any], written: list[str]) -> list[str]:
    """Returns what a run's exit code, output, summary and written lines show to be wrong."""
    wrong = [f"exit code {exit_code}"] * (exit_code != 0)
    wrong += [line.strip() for line in text.splitlines() if "terminate called" in line or "SIGABRT" in line or "Fatal" in line]
    wrong += [f"{len(summary['recoveries'])} recoveries"] * bool(summary["recoveries"])
    wrong += [f"{count} times: {line}" for line, count in Counter(written).items() if count > 1]
    wrong += [f"{len(set(written))} different lines, not {LINES}"] * (len(set(written)) != LINES)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run, where they are done in portions")
    arguments = parser.parse_args()
    bad: dict[int, list[str]] = {}
    for number in range(arguments.first, arguments.first + arguments.runs):
        kind = KINDS[number % len(KINDS)]
        with tempfile.TemporaryDirectory(prefix="deadpool-exits-") as folder:
            if wrong := run(kind, Path(folder)):
                bad[number] = wrong
        print(f"{number} {kind}: {'; '.join(bad.get(number, ['good']))}", file=sys.stderr, flush=True)
    print(json.dumps({"runs": arguments.runs, "good": arguments.runs - len(bad), "bad": bad}, indent=2))


if __name__ == "__main__":
    main()
