"""How long until a script's first line, and until the command has ended? deadpool-launch beside torchrun, in pairs.

    python benchmarks/startup.py [--pairs 7] [--ranks 2] > startup.json

Two scripts: a trivial one, and one that imports torch. The two launchers take turns, each first as often as the other. Progress
goes to stderr, JSON to stdout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.stats import rotated, summarize

SCRIPTS = {
    "trivial": "import sys, time\nopen(sys.argv[1], 'a').write(f'{time.monotonic()}\\n')\n",
    "with_torch": "import sys, time\nimport torch\nopen(sys.argv[1], 'a').write(f'{time.monotonic()}\\n')\n",
}
LAUNCHERS = {
    "deadpool": ["-m", "deadpool.cli.launch"],
    "torchrun": ["-m", "torch.distributed.run"],
}
_TIMEOUT_S = 180


def measure(launcher: str, script: Path, ranks: int) -> dict[str, float]:
    """Returns the seconds until the first rank's first line, until the last rank's, and until the command had ended."""
    folder = Path(tempfile.mkdtemp(dir=script.parent))
    lines = folder / "lines"
    command = [
        sys.executable,
        *LAUNCHERS[launcher],
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "--log-dir",
        str(folder / "logs"),
    ]
    began_s = time.monotonic()  # the same clock in all processes of a machine
    subprocess.run(
        [*command, str(script), str(lines)],
        check=True,
        timeout=_TIMEOUT_S,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    ended_s = time.monotonic()
    at_s = sorted(float(line) for line in lines.read_text().split())
    assert len(at_s) == ranks
    return {"first_line_s": at_s[0] - began_s, "last_line_s": at_s[-1] - began_s, "end_s": ended_s - began_s}


def compare(pairs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Returns, for each moment, both launchers' times, and the pairs' ratios (under 1: deadpool-launch is quicker)."""
    return {
        moment: {
            **{launcher: summarize([pair[launcher][moment] for pair in pairs]) for launcher in LAUNCHERS},
            "ratio_median": round(statistics.median(pair["deadpool"][moment] / pair["torchrun"][moment] for pair in pairs), 3),
        }
        for moment in ("first_line_s", "last_line_s", "end_s")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "ranks": arguments.ranks, "pairs": arguments.pairs}
    with tempfile.TemporaryDirectory(prefix="deadpool-startup-") as folder:
        for name, text in SCRIPTS.items():
            script = Path(folder, f"{name}.py")
            script.write_text(text)
            measure("deadpool", script, 1)  # files in the page cache, byte code written
            pairs = []
            for turn in range(arguments.pairs):
                pairs.append({each: measure(each, script, arguments.ranks) for each in rotated(list(LAUNCHERS), turn)})
                print(f"{name} {turn + 1}/{arguments.pairs}: {json.dumps(pairs[-1])}", file=sys.stderr)
            result[name] = compare(pairs)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
