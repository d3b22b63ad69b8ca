"""How an agent talks to its warm and its store process: frames (frames.py) over unix socket pairs, file descriptors beside.

To the warm process goes a `Prepare`, answered with `Ready`
once the imports are done (and another one, if its environment is known better later), then `Fork` frames, each with its file
descriptors: stdout and stderr (a rank), and its end of a socket pair (a store, a checkpoint writer) or a network namespace (a
program). One `Forked` comes back for each Fork. To the store go `Open` frames, each with a listener, back come `Opened` frames.
"""

import dataclasses
import socket
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deadpool.proto.config import Entry
from deadpool.proto.frames import LENGTH_BYTES, FrameSplitter, receive_rest, to_frame
from deadpool.proto.messages import Version
from deadpool.proto.version import own_version, version_of

OPEN_FILES = "DEADPOOL_OPEN_FILES"  # how many a rank may have open; its agent has raised its own limit
INHERITED = "DEADPOOL_WARM"  # FD:PID of the warm process that a program was given as its child
_FRAME_BYTES_MAX = 64 << 20  # an environment, mostly
_FDS_MAX = 3


class ForkKind(StrEnum):
    RANK = "rank"  # runs the job's script; a stand-in is one too
    STORE = "store"  # serves the generations' rendezvous stores
    CHECKPOINTS = "checkpoints"  # writes persistent checkpoints
    PROGRAM = "program"  # becomes another program, with a warm process of its own as its child: a copy of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """What to be ready for. `arguments`: script, module or program, and what it gets; empty: nothing yet but torch.

    `version`: the sender's; of a Prepare from another version nothing else is read. `environment` replaces the process's.
    `fresh`: ranks are new interpreters. `safe_path`: as PYTHONSAFEPATH has it.
    """

    version: Version
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    entry: Entry = Entry.SCRIPT
    arguments: tuple[str, ...] = ()
    fresh: bool = False
    safe_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """`environment`: on top of the warm process's own; all of it for a program, whose `arguments` start with its path.
    `arguments`: a program's, or the checkpoint writer's.

    `folder`: where a program is to run, if not where the warm process does.
    """

    request: int
    kind: ForkKind
    environment: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    folder: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """`problem`: "", or in one line why no process of this job can run on this node."""

    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """The process `pid` exists; its parent is, or is just becoming, the warm process's own parent."""

    request: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Comes with the listener's file descriptor."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    generation: int
    error: str = ""


Frame = Prepare | Fork | Ready | Forked | Open | Opened
_FRAMES: dict[str, type[Frame]] = {kind.__name__: kind for kind in (Prepare, Fork, Ready, Forked, Open, Opened)}


def send(connection: socket.socket, frame: Frame, fds: tuple[int, ...] = ()) -> None:
    """Sends the frame, with duplicates of the file descriptors for the receiver."""
    data = to_frame({"frame": type(frame).__name__, **dataclasses.asdict(frame)})
    if fds:
        socket.send_fds(connection, [data[:LENGTH_BYTES]], fds)
        data = data[LENGTH_BYTES:]
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[Frame, list[int]] | None:
    """Waits for the next frame and returns it with its file descriptors (the caller's to close); None at the end."""
    begun, fds, _flags, _address = socket.recv_fds(connection, LENGTH_BYTES, _FDS_MAX)
    return (_frame_of(receive_rest(connection, begun, _FRAME_BYTES_MAX)), fds) if begun else None


class FrameReader:
    """Takes a stream's bytes as they come, for a receiver that must not wait."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that are complete with this data."""
        return [_frame_of(fields) for fields in self._splitter.feed(data)]


def _frame_of(fields: dict[str, Any]) -> Frame:
    kind = _FRAMES[fields.pop("frame")]
    if kind is Fork:
        fields["kind"] = ForkKind(fields["kind"])
    if kind is Prepare:
        fields["version"] = version_of(fields.get("version"))
        if fields["version"] != own_version():
            return Prepare(version=fields["version"])
        fields["entry"] = Entry(fields["entry"])
    if "arguments" in fields:
        fields["arguments"] = tuple(fields["arguments"])
    return kind(**fields)
