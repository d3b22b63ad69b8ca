"""Who is connected, through what, and what goes out to whom: agents' streams, relays' streams, and where agents are sent.

Nothing of this is the job's state: what comes of it for the job is enqueued as events. Called in the event loop that also serves
gRPC, by its handlers (service.py) and by the runtime.
"""

from collections.abc import Iterable
from typing import Protocol

from deadpool.proto.convert import order_body
from deadpool.proto.messages import AgentMessage, FromGroup, Hello, Order, Route, Stop, Welcome
from deadpool.supervisor.core import Job
from deadpool.supervisor.failures.heartbeats import HeartbeatMonitor
from deadpool.supervisor.failures.node_claims import Claim, Claims
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.model.commands import Note, Value
from deadpool.supervisor.model.events import Event, FromAgent, NodesLost
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.relays import Relays
from deadpool.supervisor.report.pulse import Pulse
from deadpool.supervisor.resumption import REHOME_S
from deadpool.supervisor.streams import RelayStream, Stream


class Loop(Protocol):
    """What it needs of the runtime."""

    job: Job
    pulse: Pulse
    events: EventLog
    silence: HeartbeatMonitor

    def now_s(self) -> float: ...

    def next_id(self) -> int: ...

    def enqueue(self, event: Event) -> None: ...

    def heard_of(self, node_id: str) -> int:
        """Returns the number of the agent's newest message that was acted on and is on the disk; 0 while that is not sure."""


class Attendance:
    """`relay_above`: so many agents speak for themselves."""

    def __init__(self, loop: Loop, *, relay_above: int) -> None:
        self._loop = loop
        self._streams: dict[str, Stream] = {}  # the newest of each node
        self._claims = Claims()
        self._relays = Relays(above=relay_above)
        self._relay_streams: dict[str, RelayStream] = {}  # the newest of each relay

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._streams

    # ------------------------------------------------------------ agents

    def attend(self, hello: Hello, relay: RelayStream | None = None, member: int = 0) -> Stream:
        """Returns the stream for an agent that has said Hello; an older stream of the same node ends.

        Of two agents that claim the same node, the one that was started first is told to stop. `relay`: through which it speaks,
        as its `member`.
        """
        stream = Stream(hello.node_id, relay, member)
        if relay is not None:
            relay.members[member] = stream
        claim = self._claims.claim(hello, self._loop.job.state.roster.nodes.get(hello.node_id))
        if claim is Claim.REFUSED:
            self._dismiss(stream)
            return stream
        if claim is Claim.LATE:
            stream.close()
            return stream
        older = self._streams.get(hello.node_id)
        if older is not None and claim is Claim.TAKES_OVER:
            self._dismiss(older)
        elif older is not None:
            older.close()
        self._streams[hello.node_id] = stream
        self.heard(stream, hello)
        stream.arriving = hello.moves
        return stream

    def _dismiss(self, stream: Stream) -> None:
        """Nothing of this agent counts any more; it must end its ranks before they do anything."""
        reason = f"another agent, started later, is {stream.node_id}"
        stream.send(order_body(Stop(reason=reason, grace_s=0.0)))
        stream.close()

    def heard(self, stream: Stream, message: AgentMessage, number: int = 0, wire: bytes = b"") -> None:
        if self._streams.get(stream.node_id) is stream:
            stream.arriving = False
            event_id, node_id = self._loop.next_id(), stream.node_id
            self._loop.enqueue(FromAgent(event_id=event_id, node_id=node_id, message=message, number=number, wire=wire))

    def stream_closed(self, stream: Stream, reason: str) -> None:
        if self._streams.get(stream.node_id) is not stream:
            return
        del self._streams[stream.node_id]
        if stream.arriving and not self._is_over():  # whom a supervisor that was away did not welcome in time
            self._expect(stream.node_id, within_s=REHOME_S)
        else:
            self._loop.enqueue(NodesLost(event_id=self._loop.next_id(), lost={stream.node_id: reason}))

    def give_up(self, node_id: str, reason: str) -> str:
        """Returns "" once the node counts as lost, else why it cannot be."""
        stream = self._streams.get(node_id)
        if stream is None:
            return f"{node_id} is not connected"
        stream.arriving = False
        stream.close()
        self.stream_closed(stream, reason)
        return ""

    def silent(self, node_ids: Iterable[str]) -> None:
        """These are given up: what they say no longer counts."""
        for node_id in node_ids:
            if (stream := self._streams.pop(node_id, None)) is not None:
                stream.close()

    def lost(self, node_id: str) -> None:
        """The node counts as lost; and so does what it relays."""
        self._relays.left(node_id)
        if (relay := self._relay_streams.get(node_id)) is not None:
            self.relay_closed(relay)

    def close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    # ------------------------------------------------------------ relays

    def joined(self, hello: Hello) -> None:
        """The agent is being welcomed: it, or another one, may be sent elsewhere."""
        self._route(self._relays.joined(hello.node_id, hello.hint, through=self.relay_of(hello.node_id)))

    def relay_of(self, node_id: str) -> str:
        """Returns the relay through which the agent speaks, "" for none."""
        stream = self._streams.get(node_id)
        return stream.relay.node_id if stream is not None and stream.relay is not None else ""

    def relay_opened(self, relay: RelayStream, door: str) -> None:
        """A relay speaks for a group; an older stream of it ends."""
        silence = self._loop.silence
        if (older := self._relay_streams.get(relay.node_id)) is not None:
            self.relay_closed(older, within_s=REHOME_S + silence.timeout_s)  # one that is cut off finds out by itself
        self._relay_streams[relay.node_id] = relay
        relay.answer()
        silence.relay_heard(relay.node_id, now_s=self._loop.now_s())
        self._say("relay_opened", node=relay.node_id)
        self._route(self._relays.opened(relay.node_id, door))

    def relay_lives(self, relay: RelayStream) -> bool:
        """Something has come from it: it is answered, so that it knows that the supervisor is there.

        Returns False when it was given up meanwhile: what it says does not count any more.
        """
        if self._relay_streams.get(relay.node_id) is not relay:
            return False
        self._loop.silence.relay_heard(relay.node_id, now_s=self._loop.now_s())
        relay.answer()
        return True

    def members_live(self, relay: RelayStream, batch: FromGroup) -> None:
        """Heartbeats with nothing new in them but a step have come to the relay."""
        now_s, heard, later, streams, members = self._loop.now_s(), [], self._loop.pulse.later, self._streams, relay.members
        for member, age_ms, step in zip(batch.living, batch.ages_ms, batch.steps, strict=True):  # thousands in a second
            stream = members.get(member)
            if stream is not None and streams.get(node_id := stream.node_id) is stream:
                stream.arriving = False
                ago_s = age_ms / 1e3
                heard.append((node_id, ago_s))
                later[node_id] = now_s - ago_s, step
        self._loop.silence.heard_by_relay(heard, now_s=now_s)

    def relays_silent(self, node_ids: Iterable[str]) -> None:
        """These relays are given up."""
        for node_id in node_ids:
            self.relay_closed(self._relay_streams[node_id])

    def relay_closed(self, relay: RelayStream, *, within_s: float = REHOME_S) -> None:
        """Whoever was behind it comes back, by itself or through it; at the job's end there is nothing to come back for."""
        if self._relay_streams.get(relay.node_id) is relay:
            del self._relay_streams[relay.node_id]
            self._relays.closed(relay.node_id)
            self._loop.silence.relay_gone(relay.node_id)
            self._say("relay_closed", node=relay.node_id, agents=len(relay.members))
        for stream in relay.members.values():
            if self._streams.get(stream.node_id) is not stream:
                continue
            if self._is_over():
                self.stream_closed(stream, "its relay has ended")
            else:
                del self._streams[stream.node_id]
                self._expect(stream.node_id, within_s=within_s)
        relay.members.clear()
        relay.heard.clear()
        relay.close()

    def _is_over(self) -> bool:
        return self._loop.job.state.phase is Phase.END

    def _expect(self, node_id: str, *, within_s: float) -> None:
        self._loop.silence.expect(node_id, now_s=self._loop.now_s(), within_s=within_s)

    def _say(self, event: str, **fields: Value) -> None:
        generation = self._loop.job.state.generation
        self._loop.events.add(Note(cause="relays", event=event, generation=generation, fields=fields))

    def _route(self, routes: list[tuple[str, Route]]) -> None:
        for node_id, route in routes:
            if node_id in self._streams:
                self._streams[node_id].send(order_body(route))

    # ------------------------------------------------------------ orders

    def send(self, node_id: str, order: Order, number: int, bodies: dict[int, bytes]) -> None:
        """Nothing goes to an agent that is not there: its loss, or its return, is still to come.

        `bodies`: of the orders that go out together, by id: what is the same for all nodes that get one is encoded once.
        """
        stream = self._streams.get(node_id)
        if stream is None:
            return
        if isinstance(order, Welcome):
            stream.welcomed = True
            stream.acted_on(self._loop.heard_of(node_id))
        if stream.welcomed:
            if id(order) not in bodies:
                bodies[id(order)] = order_body(order)
            stream.send(bodies[id(order)], number=number, heard=self._loop.heard_of(node_id))

    def send_to_all(self, order: Order, number: int) -> None:
        """To each agent on the stream on which it was welcomed; who is on the way to another one will be sent it there."""
        body = order_body(order)
        for relay in self._relay_streams.values():
            relay.send_to_all(body, number)
        for node_id, stream in self._streams.items():
            if stream.relay is None and stream.welcomed:
                stream.send(body, number=number, heard=self._loop.heard_of(node_id))

    def ask(self, node_ids: Iterable[str], order: Order) -> None:
        """An order without a number: it belongs to no conversation, and one that is lost is not sent again."""
        body = order_body(order)
        for node_id in node_ids:
            self._streams[node_id].send(body)

    def acknowledge(self, node_ids: Iterable[str] | None) -> None:
        """What these agents have said (None: all) has been acted on, and is on the disk."""
        known = self._loop.job.state.roster.nodes
        for node_id in self._streams if node_ids is None else node_ids:
            if node_id in self._streams and node_id in known:
                self._streams[node_id].acted_on(self._loop.heard_of(node_id))
