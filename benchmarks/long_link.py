"""How fast do replicas travel over a long link, by one connection and by several? Needs root.

    python -m benchmarks.long_link --mb 64 --delay-ms 10 --connections 1 2 4 8 auto > long_link.json

A rank and its holder are in network namespaces of their own, with a tunnel between them (two TUN devices) in which a third
process holds back every packet for `--delay-ms`, each way. A connection then carries what the kernel lets be on its way, once for
each round trip; that is less than the link takes. Figures are GB/s of a state that lies in its slot, sent, verified and sealed.

`fetched`: the same state, restored by a process that takes over the rank. auto first sends as many states as it needs to settle
on a number. Progress goes to stderr, JSON to stdout.
"""

import argparse
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine, protected_rank
from benchmarks.protected_rank import TOKEN, ProtectedRank, tensors
from benchmarks.stats import summarize
from deadpool.proto.messages import Endpoint, Source, SourceKind
from deadpool.trainer_hooks.protection.connections import AUTO
from deadpool.trainer_hooks.protection.restore import from_elsewhere
from deadpool.trainer_hooks.protection.vaults import Vaults

NEAR, FAR = "10.9.0.1", "10.9.0.2"
SETTLING_STATES = 16  # auto has tried all it may by then
_MTU = 60_000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_READS = 64  # packets taken at once


def tunnel(name: str) -> int:
    """Returns the descriptor that gives and takes the packets of a new device in this process's network."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


def relay(ends: tuple[int, int], delay_s: float) -> None:
    """Passes packets on, each after the delay, until it is killed."""
    others = {ends[0]: ends[1], ends[1]: ends[0]}
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}  # by where they come from
    while True:
        dues_s = [packets[0][0] for packets in waiting.values() if packets]
        ready, _, _ = select.select(ends, [], [], max(0.0, min(dues_s) - time.monotonic()) if dues_s else None)
        now_s = time.monotonic()
        for end in ready:
            for _ in range(_READS):
                try:
                    waiting[end].append((now_s + delay_s, os.read(end, 1 << 16)))
                except BlockingIOError:
                    break
                except OSError:  # the network is gone, and the device with it
                    return
        for end, packets in waiting.items():
            while packets and packets[0][0] <= now_s:
                try:
                    os.write(others[end], packets.popleft()[1])
                except BlockingIOError:  # its queue is full: the packet is lost, as on any link
                    continue


@contextmanager
def far_holder(delay_ms: float) -> Iterator[Endpoint]:
    """Enters with a holder at the other end of a long link from this process's network, which is its own."""
    near, far = tunnel("near"), tunnel("far")
    holder = subprocess.Popen(
        ["unshare", "--net", sys.executable, protected_rank.__file__, FAR],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdout.readline()
    there = ["nsenter", "--net", "--target", str(holder.pid)]
    _run("ip", "link", "set", "far", "netns", str(holder.pid))
    for command, name, address in (([], "near", NEAR), (there, "far", FAR)):
        _run(*command, "ip", "addr", "add", f"{address}/24", "dev", name)
        _run(*command, "ip", "link", "set", name, "mtu", str(_MTU), "up")
    delaying = [sys.executable, __file__, "--relay", str(near), str(far), "--delay-ms", str(delay_ms)]
    with subprocess.Popen(delaying, pass_fds=(near, far)) as between:
        try:
            holder.stdin.write("\n")
            holder.stdin.flush()
            yield Endpoint(node_id="far", host=FAR, port=int(holder.stdout.readline()))
        finally:
            holder.communicate("")
            between.kill()


def measure(holder: Endpoint, connections: int, arguments: argparse.Namespace) -> dict[str, Any]:
    rates, fetched = [], []
    with ProtectedRank(tensors(arguments.mb << 20, 16 << 20, 0.0), [holder], connections) as rank:
        rank.settle()
        for _ in range(SETTLING_STATES if connections == AUTO else 0):
            rank.train_step()
            rank.wait_committed()
        slot = rank.slots.find(rank.newest)
        assert slot is not None
        for _ in range(arguments.repeats):
            began_s = time.perf_counter()
            rank.send_again(slot)
            rates.append(rank.size_bytes / (time.perf_counter() - began_s) / 1e9)
        source = Source(rank=0, kind=SourceKind.REPLICA, slot_generation=1, endpoint=holder)
        for _ in range(arguments.repeats):
            began_s = time.perf_counter()
            from_elsewhere(rank.state, source, rank.newest.step, Vaults(token=TOKEN, connections=connections))
            fetched.append(rank.size_bytes / (time.perf_counter() - began_s) / 1e9)
    return {
        "connections": connections or "auto",
        "gb_s": summarize(rates) | {"raw": [round(each, 4) for each in rates]},
        "fetched_gb_s": summarize(fetched) | {"raw": [round(each, 4) for each in fetched]},
    }


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=64, help="state of the rank")
    parser.add_argument("--delay-ms", type=float, default=10.0, help="each way")
    parser.add_argument("--connections", nargs="+", default=["1", "2", "4", "8", "auto"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--relay", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        relay(tuple(arguments.relay), arguments.delay_ms / 1000)
    if not arguments.inside:
        os.execvp("unshare", ["unshare", "--net", sys.executable, __file__, *sys.argv[1:], "--inside"])
    torch.set_num_threads(1)
    described, results = machine.describe(), []
    with far_holder(arguments.delay_ms) as holder:
        for number in arguments.connections:
            results.append(measure(holder, AUTO if number == "auto" else int(number), arguments))
            sent, fetched = results[-1]["gb_s"]["median"], results[-1]["fetched_gb_s"]["median"]
            print(f"{number}: sent {sent} GB/s, fetched {fetched} GB/s", file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "long_link", "machine": described, "options": vars(arguments), "results": results}, indent=2))


if __name__ == "__main__":
    main()
