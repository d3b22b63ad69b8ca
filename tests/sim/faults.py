"""What befalls a simulated job. Each fault is a method without arguments that strikes now, at something chosen at random."""

from collections.abc import Callable
from dataclasses import replace

from sim.node import SimNode
from sim.rank import SimRank
from sim.supervisor import SimSupervisor

from deadpool.proto.messages import NO_STEP, Reading
from deadpool.supervisor.model.state import RecoveryState
from deadpool.supervisor.model.timeline import Stage
from deadpool.trainer_hooks.protocol import RankPhase

SICK = Reading(name="gpu_ecc_uncorrected", value=1.0)


class Faults:
    def __init__(self, supervisor: SimSupervisor) -> None:
        self.supervisor = supervisor
        self.world = supervisor.world
        self.truth = supervisor.truth
        self._left = False  # a rank has exited with 0 in a step

    def of_racks(self) -> list[Callable[[], None]]:
        return [self._lose_rack] * 4

    def of_relays(self) -> list[Callable[[], None]]:
        return [self._lose_relay, self._cut_relay, self._lose_relay_and_more]

    def all(self) -> list[Callable[[], None]]:
        """Returns the faults, those that should come more often more than once."""
        return [
            self._kill_rank,
            self._kill_rank,
            self._kill_node,
            self._cut,
            self._drop,
            self._broken_collective,
            self._raise,
            self._leave,
            self._freeze,
            self._hang,
            self._suspend,
            self._corrupt,
            self._kill_supervisor,
            self._kill_supervisor,
            self._twin,
            self._sicken,
            self._flip,
            self._flip_and_lose,
            self._fill,
            self._drain,
            self._drain_and_more,
            self._drain_and_more,
            self._kill_covered,
        ]

    def of_stages(self) -> list[Callable[[], None]]:
        return [
            self._kill_rank,
            self._kill_node,
            self._cut,
            self._drop,
            self._broken_collective,
            self._freeze,
            self._hang,
            self._kill_supervisor,
            self._corrupt,
            self._fill,
        ]

    def in_stage(self, stage: Stage, hit: Callable[[], None], until_s: float) -> None:
        """The next recovery that comes into this stage by then is hit there."""
        attempt = self._recovery.attempt
        if attempt is not None and attempt.stage is stage and self._recovery.story is not None:
            self._log(f"in the stage {stage}:")
            self.world.at(self.world.random.choice([0.0, self.world.between(0.0, 0.05)]), hit)
        elif self.world.now_s < until_s:
            self.world.at(0.004, self.in_stage, stage, hit, until_s)

    def boot(self, index: int) -> None:
        """A node's agent is started, whatever there is of its name."""
        node = SimNode(self.supervisor, index)
        self.supervisor.nodes[node.node_id] = node
        node.connect()

    # ------------------------------------------------------------ processes

    def _kill_rank(self) -> None:
        process = self._any_process()
        if process is not None:
            self._log(f"kill pid {process.pid} on {process.node.node_id}")
            process.node.process_dies(process.number)

    def _broken_collective(self) -> None:
        process = self._any_process(playing=True)
        if process is not None and process.member is not None:
            self._log(f"a collective fails on rank {process.member.rank}")
            process.collective_fails(process.member.generation)

    def lose_excludable(self) -> None:
        """A node with ranks is lost, not the first one."""
        state = self.supervisor.job.state
        if state.progress.commit_step == NO_STEP and not state.ending.over:
            self.world.at(0.3, self.lose_excludable)
        elif members := state.roster.members()[1:]:
            self._lose(self.supervisor.nodes[self.world.random.choice(members).node_id])

    def miss_excluded(self) -> None:
        """A call has no result without the ranks that are excluded."""
        process, excluded = self._any_process(playing=True), self.supervisor.job.state.roster.excluded_ranks()
        if process is None or process.member is None or not excluded or self.world.chance(0.5):
            return
        self._log(f"rank {process.member.rank} needs ranks {excluded}")
        process.collective_fails(process.member.running, excluded)

    def _raise(self) -> None:
        """Before any commit an error would rightly end the job."""
        process = self._any_process(playing=True)
        if process is None or process.member is None or process.member.phase is not RankPhase.RUN or process.known_commit < 0:
            return
        self._log(f"an error in rank {process.member.rank}, pid {process.pid} on {process.node.node_id}")
        process.raises()

    def _leave(self) -> None:
        """A script ends with 0 in the middle of a step. If all did, or one did twice in one step, it would rightly be the end."""
        process = self._any_process(playing=True)
        if process is None or process.member is None or self._left or self._has_left(process):
            return
        if self.supervisor.truth.world_size(process.member.running) == 1:
            return  # the others are excluded
        if 0 <= self.supervisor.leaves_at - process.step <= 2:
            return  # the others, which only the fence holds, may leave their loops without it, and so do all
        stepping = process.member.phase in (RankPhase.RUN, RankPhase.REHEARSE)
        if stepping and process.in_body == NO_STEP and self.supervisor.job.state.progress.commit_step >= 0:
            self._log(f"rank {process.rank}, pid {process.pid} on {process.node.node_id}, exits with 0 in its step")
            self._left = True
            process.leaves()

    def _freeze(self) -> None:
        process = self._any_process()
        if process is not None and not self._has_left(process):
            self._log(f"freeze pid {process.pid} on {process.node.node_id}")
            process.frozen = True
            if self.world.chance(0.5):  # else it is found by the steps that do not advance
                self.world.at(1.0, self._peers_time_out, process)

    def _hang(self) -> None:
        """Before any process has made a step nobody can know how long that may take."""
        process = self._any_process()
        if process is None or self._has_left(process):
            return
        if self.supervisor.job.state.progress.longest_build_s:
            self._log(f"pid {process.pid} on {process.node.node_id} hangs")
            process.hung = True

    def _has_left(self, process: SimRank) -> bool:
        """Returns whether it is behind its step loop: how long the rest takes is the script's affair."""
        return process.in_body != NO_STEP and process.in_body == self.supervisor.leaves_at

    def _peers_time_out(self, frozen: SimRank) -> None:
        """Sooner or later a collective that waits for the frozen rank fails."""
        if frozen.alive and frozen.node.alive and not self.world.over:
            self.supervisor.peers_notice(frozen)
            self.world.at(2.0, self._peers_time_out, frozen)

    def _flip(self) -> None:
        self._flipped()

    def _flipped(self) -> SimNode | None:
        """A bit of one rank's state flips; returns the rank's node. Where only two compare, nobody can tell who is right."""
        process = self._any_process(playing=True)
        if process is None or process.member is None or process.member.phase is not RankPhase.RUN or process.step < 0:
            return None
        generation = process.member.running
        decidable = not self.truth.compares or self.truth.world_size(generation) > 2
        if not decidable or self.truth.groups(generation).wrong_from is not None:
            return None
        self._log(f"a bit flips in rank {process.member.rank}, at S_{process.step}")
        process.content = self.truth.flip(process.content, generation)
        return process.node

    def _flip_and_lose(self) -> None:
        """What is left of that rank then does not fit what its peers hold."""
        node = self._flipped()
        if node is not None:
            self.world.at(self.world.between(0.0, 1.0), self._lose, node)

    def _lose(self, node: SimNode) -> None:
        if node.alive:
            self._log(f"kill {node.node_id}")
            self._die(node, self.world.between(0.2, 20.0))

    # ------------------------------------------------------------ nodes

    def _kill_node(self) -> None:
        for node in self._any_node(alive=True):
            self._lose(node)

    def _lose_rack(self) -> None:
        """All nodes that hang on one switch, within a moment."""
        for node in self._any_node(alive=True):
            rack = self.truth.racks.get(node.node_id)
            for each in self.supervisor.nodes.values():
                if self.truth.racks.get(each.node_id) == rack:
                    self.world.at(self.world.random.choice([0.0, self.world.between(0.0, 0.1)]), self._lose, each)

    def _die(self, node: SimNode, away_s: float) -> None:
        if node.alive and not self.supervisor.job.state.ending.over:
            node.die()
            self.world.at(away_s, self.boot, node.index)

    def _cut(self) -> None:
        seconds = self.world.between(0.1, 8.0)
        for node in self._any_node():
            self._log(f"cut {node.node_id} off for {seconds:.1f} s")
            node.cut(seconds)

    def suspend_agent(self) -> None:
        """A node's agent gets no time for a while."""
        seconds = self.world.random.choice([self.world.between(0.1, 3.0), self.world.between(0.5, 8.0)])
        for node in self._any_node(alive=True):
            if node.relay is None:
                self._log(f"suspend the agent of {node.node_id} for {seconds:.1f} s")
                node.suspend(seconds)

    def _drop(self) -> None:
        for node in self._any_node():
            self._log(f"drop {node.node_id}'s connection")
            node.drop_connection()

    def _twin(self) -> None:
        """A second agent of the same name is started while the first one lives."""
        for node in self._any_node(alive=True):
            self._log(f"another {node.node_id} is started")
            node.disturbed = True
            self.boot(node.index)

    def _sicken(self) -> None:
        """The node's readings go bad; some seconds later it is repaired, which takes its memory away."""
        for node in self._any_node(alive=True):
            self._log(f"{node.node_id} is not well")
            node.readings = (SICK,)
            self.world.at(self.world.between(1.0, 10.0), self._die, node, 0.5)

    def _fill(self) -> None:
        """The node has no room for replicas for a while."""
        for node in self._any_node(alive=True):
            seconds = self.world.between(0.1, 3.0)
            self._log(f"{node.node_id} is full for {seconds:.1f} s")
            node.full = True
            self.world.at(seconds, setattr, node, "full", False)

    def _corrupt(self) -> None:
        """Every copy of one rank's state in one vault goes bad: as if that vault were lost, should it be needed."""
        for node in self._any_node(alive=True):
            held = [slots for slots in node.vault.held.values() if any(slots)]
            if held:
                slots = self.world.random.choice(held)
                self._log(f"corrupt {slots} on {node.node_id}")
                slots[:] = [replace(slot, bad=True) if slot is not None else None for slot in slots]
                self.truth.lost(node.node_id)

    def _drain(self) -> None:
        """A node is to be freed, or may be used again; after a while all may, so that no job waits for ever."""
        for node in self._any_node():
            self._drain_node(node.node_id, undo=self.world.chance(0.3))

    def _drain_node(self, node_id: str, *, undo: bool) -> None:
        self._log(f"{'undo the drain of' if undo else 'drain'} {node_id}")
        self.supervisor.drain(node_id, undo=undo)
        self.world.at(self.world.between(0.5, 20.0), self._undo_drain, node_id)

    def _drain_and_more(self) -> None:
        """While a spare gets hot for a node's seat, that node, the spare, one of its stand-ins or the supervisor fails."""
        members = self.supervisor.job.state.roster.members()
        if members:
            self._drain_node(self.world.random.choice(members).node_id, undo=False)
        hit = self.world.random.choice([self._kill_hot, self._lose_hot, self._lose_swapped, self._kill_supervisor, self._drain])
        self.world.at(self.world.between(0.0, 1.5), hit)

    def _kill_hot(self) -> None:
        for node in self._hot_nodes():
            number = next((number for number, process in node.core.processes.items() if process.hot), None)
            if number is not None:
                self._log(f"kill a hot stand-in on {node.node_id}")
                node.process_dies(number)

    def _kill_covered(self) -> None:
        """A rank dies for which a stand-in on its node is hot, or gets so; at times that one a moment before or after it."""
        covered = [(node_id, rank) for node_id, hot in self._recovery.hot_members.items() for rank in hot.ranks]
        if covered:
            node_id, rank = self.world.random.choice(covered)
            core = self.supervisor.nodes[node_id].core
            for process in (core.ranks().get(rank), core.hot_standins().get(rank)):
                if process is not None and (not process.hot or self.world.chance(0.3)):
                    self._log(f"kill {'the hot stand-in of ' if process.hot else ''}rank {rank} on {node_id}")
                    self.world.at(self.world.between(0, 0.1), self.supervisor.nodes[node_id].process_dies, process.number)

    def _lose_hot(self) -> None:
        for node in self._hot_nodes():
            self._lose(node)

    def _lose_swapped(self) -> None:
        for node_id in list(self._recovery.swaps):
            self._lose(self.supervisor.nodes[node_id])

    def _hot_nodes(self) -> list[SimNode]:
        return [self.supervisor.nodes[node_id] for node_id in (*self._recovery.hot, *self._recovery.hot_members)]

    @property
    def _recovery(self) -> RecoveryState:
        return self.supervisor.job.state.recovery

    def _undo_drain(self, node_id: str) -> None:
        self.supervisor.drain(node_id, undo=True)

    # ------------------------------------------------------------ relays

    def _relays(self) -> list[SimNode]:
        """Returns one node that is a relay, none when there is none (yet)."""
        nodes = [node for node in self.supervisor.nodes.values() if node.alive and node.relay is not None and node.relay.open]
        return [self.world.random.choice(nodes)] if nodes else []

    def _lose_relay(self) -> None:
        for node in self._relays():
            self._lose(node)

    def _cut_relay(self) -> None:
        """Its group still reaches it, the supervisor does not."""
        seconds = self.world.between(0.1, 8.0)
        for node in self._relays():
            self._log(f"cut the relay {node.node_id} off from the supervisor for {seconds:.1f} s")
            node.cut_from_supervisor(seconds)

    def _lose_relay_and_more(self) -> None:
        """And while its group comes back, a process, a node or the supervisor."""
        self._lose_relay()
        hit = self.world.random.choice(
            [self._kill_rank, self._kill_node, self._kill_supervisor, self._lose_relay, self._cut_relay]
        )
        self.world.at(self.world.between(0.0, 2.0), hit)

    # ------------------------------------------------------------ the supervisor

    def _suspend(self) -> None:
        seconds = self.world.between(0.5, 10.0)
        self._log(f"suspend the supervisor for {seconds:.1f} s")
        self.supervisor.suspend(seconds)

    def _kill_supervisor(self) -> None:
        self._log("kill the supervisor")
        self.supervisor.kill()

    # ------------------------------------------------------------ who it hits

    def _any_process(self, *, playing: bool = False) -> SimRank | None:
        processes = [each for each in self.supervisor.processes() if each.member is not None or not playing]
        return self.world.random.choice(processes) if processes else None

    def _any_node(self, *, alive: bool = False) -> list[SimNode]:
        """Returns one node, none when there is none (yet)."""
        nodes = [node for node in self.supervisor.nodes.values() if node.alive or not alive]
        return [self.world.random.choice(nodes)] if nodes else []

    def _log(self, text: str) -> None:
        self.truth.log.append(f"{self.world.now_s:9.3f} ---- {text}")
