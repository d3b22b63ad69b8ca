"""What the processes of a job say to each other, as plain frozen dataclasses, by the two that speak: agent and supervisor
(agent.py), rank and agent (rank.py), both (common.py). What people ask the supervisor is in status.py.

The .proto file beside each defines the same messages under the same names and field names for the wire; proto/convert.py is the
only place where both meet. Cores, tests and the simulation use these classes only.

Words: see docs/architecture.md. Times named `*_ns` are CLOCK_MONOTONIC nanoseconds of the machine that took them.
A message that belongs to a generation carries it; a receiver drops what is older than its own (the fence).
"""

from deadpool.proto.messages.agent import *
from deadpool.proto.messages.common import *
from deadpool.proto.messages.rank import *
