"""Agent and supervisor go on talking where they were, whatever connection or supervisor was lost in between."""

from dataclasses import replace

from supervising import Scene

from deadpool.agent.supervisor_link.conversation import Conversation
from deadpool.proto.messages import (
    AgentMessage,
    Heartbeat,
    Hello,
    Inject,
    OpenStore,
    Quiesce,
    RankJoined,
    StartRanks,
    Stop,
    StoreOpened,
    Welcome,
)
from deadpool.supervisor.model.commands import SendOrder
from deadpool.supervisor.model.events import FromAgent
from deadpool.supervisor.model.phase import Phase

HELLO = Hello(node_id="node0", hint=0, host="h", port=1, pid=1, generation=0)


def joined(rank: int) -> RankJoined:
    return RankJoined(generation=1, rank=rank, pid=rank)


def sent(conversation: Conversation) -> list[tuple[int, AgentMessage]]:
    found = []
    while (said := conversation.next()) is not None:
        found.append(said)
        conversation.sent()
    return found


def test_what_was_not_acted_on_is_said_again() -> None:
    talk = Conversation()
    assert talk.welcomed(Welcome(config_json="", generation=1, term=1))
    for rank in range(3):
        talk.say(joined(rank))
    talk.say(Heartbeat(generation=1))
    assert [number for number, _ in sent(talk)] == [1, 2, 3, 0]
    talk.say(joined(3))  # not sent any more
    assert talk.welcomed(Welcome(config_json="", generation=1, term=2, resumed=True, heard=1))
    assert sent(talk) == [(2, joined(1)), (3, joined(2)), (4, joined(3))]


def test_what_was_acted_on_is_forgotten() -> None:
    talk = Conversation()
    talk.welcomed(Welcome(config_json="", generation=1, term=1))
    talk.say(joined(0))
    sent(talk)
    talk.ordered(5, 1)
    talk.welcomed(Welcome(config_json="", generation=1, term=1, resumed=True, heard=0))
    assert sent(talk) == []
    assert talk.hello(HELLO).obeyed == 5


def test_a_node_that_was_given_up_begins_anew() -> None:
    talk = Conversation()
    talk.welcomed(Welcome(config_json="", generation=1, term=1))
    talk.say(joined(0))
    sent(talk)
    talk.say(joined(1))
    talk.ordered(5, 0)
    talk.welcomed(Welcome(config_json="", generation=2, term=1))
    assert sent(talk) == [(1, joined(1))]
    assert talk.hello(HELLO).obeyed == 0


def test_a_lower_term_gives_no_orders() -> None:
    talk = Conversation()
    assert talk.welcomed(Welcome(config_json="", generation=1, term=4))
    assert not talk.welcomed(Welcome(config_json="", generation=9, term=3))
    assert talk.term == 4


def test_a_heartbeat_says_which_order_was_the_last() -> None:
    talk = Conversation()
    talk.ordered(7, 0)
    talk.say(Heartbeat(generation=1))
    assert sent(talk) == [(0, Heartbeat(generation=1, obeyed=7))]


def test_no_order_is_obeyed_twice() -> None:
    talk = Conversation()
    talk.welcomed(Welcome(config_json="", generation=0, conversation=1))
    assert talk.ordered(3, 0)
    assert not talk.ordered(3, 0)
    assert talk.ordered(0, 0)  # those without a number belong to no conversation
    assert talk.obeyed == 3


# ---------------------------------------------------------------- the supervisor's side


def orders(scene: Scene, since: int) -> list[tuple[int, type]]:
    return [(each.number, type(each.order)) for each in scene.commands[since:] if isinstance(each, SendOrder)]


def back(scene: Scene, node: int, *, obeyed: int, generation: int = 1, conversation: int | None = None) -> list[tuple[int, type]]:
    """`conversation`: that the agent believes to be in; None: it is in the newest."""
    session = scene.state.roster.nodes[f"node{node}"].session
    host, port, pid, incarnation = session.life
    hello = replace(HELLO, node_id=f"node{node}", hint=node, host=host, port=port, pid=pid, incarnation=incarnation)
    conversation = session.conversation if conversation is None else conversation
    hello = replace(hello, generation=generation, obeyed=obeyed, conversation=conversation)
    since = len(scene.commands)
    scene.say(node, hello)
    return orders(scene, since)


def test_an_agent_that_is_back_gets_what_it_has_not_had() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    assert back(scene, 0, obeyed=1) == [(0, Welcome), (2, StartRanks), *orders_after(scene, 2)]
    assert back(scene, 0, obeyed=scene.state.roster.nodes["node0"].session.sent) == [(0, Welcome)]
    assert (scene.state.generation, scene.state.phase) == (1, Phase.RUN)


def orders_after(scene: Scene, number: int) -> list[tuple[int, type]]:
    return [(each, type(order)) for each, order in scene.state.roster.nodes["node0"].session.unobeyed if each > number]


def test_a_message_is_acted_on_once() -> None:
    scene = Scene()
    for node in range(3):
        scene.hello(node)
    opened = StoreOpened(generation=1, host="h", port=7)
    for _ in range(2):
        scene.handle(FromAgent(event_id=50, node_id="node0", message=opened, number=1))
    assert len(scene.took(StartRanks)) == 2
    assert scene.state.roster.nodes["node0"].session.heard == 1


def test_an_order_for_everybody_is_said_again_with_its_number() -> None:
    """And not to an agent that has come since: what was ordered before is not for it."""
    scene = Scene()
    scene.start(commit_step=4)
    had = scene.state.orders.newest
    scene.killed(0)
    (to_all,) = {each.number for each in scene.commands if isinstance(each, SendOrder) and isinstance(each.order, Quiesce)}
    assert back(scene, 1, obeyed=had) == [(0, Welcome), (to_all, Quiesce)]
    assert back(scene, 1, obeyed=to_all) == [(0, Welcome)]
    scene.lose(2)
    scene.hello(2)
    assert (to_all, Quiesce) not in back(scene, 2, obeyed=0)


def test_what_everybody_has_had_is_forgotten() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    for _ in range(40):
        scene.inject("kill-rank", 0, 1000)
        for node in range(3):
            scene.say(node, Heartbeat(generation=1, obeyed=scene.state.orders.newest))
    assert len(scene.state.orders.to_all) < 20
    newest = scene.state.orders.newest + 1
    scene.inject("kill-rank", 0, 1000)
    assert back(scene, 0, obeyed=newest - 1)[1:] == [(newest, Inject)]


def test_heartbeats_let_old_orders_be_forgotten() -> None:
    scene = Scene()
    scene.start()
    session = scene.state.roster.nodes["node0"].session
    assert session.unobeyed
    scene.say(0, Heartbeat(generation=1, obeyed=session.sent))
    assert session.unobeyed == []


def test_a_journal_that_is_behind_the_job_ends_it() -> None:
    """A disk that was full, a folder that was put back from a copy: nobody knows what was ordered since."""
    scene = Scene()
    scene.start(commit_step=4)
    ended = back(scene, 0, obeyed=99, generation=3)
    assert ended[-1][1] is Stop
    assert scene.end().exit_code == 1
    assert "the journal is behind the job: node0 has obeyed order 99 of generation 3" in scene.end().root_cause
    assert back(scene, 1, obeyed=120)[-1][1] is Stop  # whatever it has obeyed of what was lost


def test_a_welcome_that_was_lost_with_its_supervisor_is_said_again() -> None:
    """The node was given up and has come back; its agent has not heard so yet, and counts in the conversation of before."""
    scene = Scene()
    scene.start(commit_step=4)
    before = scene.state.roster.nodes["node1"].session.conversation
    scene.lose(1)
    first = back(scene, 1, obeyed=2, conversation=before)
    assert first[0] == (0, Welcome)
    again = back(scene, 1, obeyed=2, conversation=before)
    assert again == first
    welcome = next(each.order for each in scene.commands[::-1] if isinstance(each, SendOrder) and isinstance(each.order, Welcome))
    assert isinstance(welcome, Welcome)
    assert (welcome.resumed, welcome.generation) == (False, 2)  # newer than what it runs: its ranks end
    assert scene.state.generation == 2


def test_an_agent_that_was_never_welcomed_goes_on() -> None:
    scene = Scene()
    scene.hello(0)
    assert back(scene, 0, obeyed=0, generation=0, conversation=0) == [(0, Welcome)]
    assert len(scene.state.roster.nodes) == 1


def test_another_agent_of_the_node_is_not_the_one_that_was_there() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.hello(0)
    assert scene.state.generation == 2
    assert scene.took(OpenStore)
