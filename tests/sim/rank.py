"""A simulated rank process: the real Member, around it a main thread in virtual time; its protect thread is in protection.py."""

from typing import TYPE_CHECKING, Any, assert_never

from sim.protection import SimProtection
from sim.restoring import fetch, was_apart

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP, RankOrder, Reform, Source, SourceKind
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.schedule import SETTLING_STATES
from deadpool.trainer_hooks.protocol import Action, Break, Leave, Member, RankPhase, Recover

_OPERATION_TIMEOUT_S = 20.0

if TYPE_CHECKING:
    from sim.node import SimNode


class SimRank:
    """`number`: the agent's. Until a Role comes it is a stand-in. `frozen`: it never reaches its boundary again."""

    def __init__(self, node: "SimNode", number: int, pid: int) -> None:
        self.node = node
        self.world = node.world
        self.truth = node.truth
        self.number: int = number
        self.pid: int = pid
        self.alive = True
        self.frozen = False
        self.hung = False  # its main thread does nothing any more
        self.communicates = False  # its groups have been open
        self.raised = False  # an exception is on its way out of its step
        self.member: Member | None = None
        self.content = 0
        self.steps_done = 0
        self.protection = SimProtection(self)
        self._thread = 0  # number of the main thread's present run: continuations of an older one do nothing
        self._muted = False  # its generation has broken: calls return, and communicate nothing
        self._calls_in_body = False  # the body of the step in hand has yet to communicate
        self.loop = 0  # in which of the script's its main thread is, or which it has left last
        self._last_step = NO_STEP
        self._order: Reform | None = None
        self._resuming = False
        self._released = False  # from the present loop
        self._has_layout = False  # its DDP sums as in every step of the training but the first

    @property
    def rank(self) -> int:
        """-1 for a stand-in."""
        return self.member.rank if self.member is not None else -1

    @property
    def step(self) -> int:
        """The step in progress."""
        if self.member is None or self.member.live is None:
            return self._last_step if self.is_between else NO_STEP
        return self.member.live.step

    @property
    def until(self) -> int:
        """Where its loop ends."""
        return self.node.supervisor.loops[self.loop].until

    @property
    def is_between(self) -> bool:
        """Whether it was released from its loop; and what it does now, no snapshot has."""
        return self.member is not None and self.member.phase in (RankPhase.RELEASED, RankPhase.REOPENED)

    @property
    def known_commit(self) -> int:
        return self.member.commit_step if self.member is not None else NO_STEP

    # ------------------------------------------------------------ orders

    def receive(self, order: RankOrder) -> None:
        if not self.alive:
            return
        member = self.member
        before = None if member is None else (member.generation, member.phase, member.running)
        self._obey(order)
        if member is None or before is None or getattr(order, "generation", before[0]) >= before[0]:
            return
        if before != (member.generation, member.phase, member.running):
            raise self.truth.fail(f"rank {member.rank}: {order} was obeyed, {before} before")

    def _obey(self, order: RankOrder) -> None:
        match order:
            case messages.Role():
                self._take_role(order)
            case messages.Quiesce() if self.member is not None:
                self.act(self.member.quiesce(order))
            case messages.Reform() if self.member is not None:
                self.act(self.member.reform(order))
            case messages.Release() if self.member is not None:
                self.member.release(order)
                if self.member.phase is RankPhase.RELEASED and not self._released:
                    self._released = True
                    self._leaves_loop_at_its_end()
            case messages.BeginLoop() if self.member is not None:
                before = self.member.phase
                self.member.begin_loop(order)
                if before is not self.member.phase:
                    self._next_loop_begins()
            case _:
                pass

    def _take_role(self, role: messages.Role) -> None:
        if self.member is not None:  # it was hot for another rank, and begins again
            self._thread += 1
            self.protection, self._order, self._has_layout = SimProtection(self), None, False
        repeatable = self.node.supervisor.repeatable
        self.member = Member(rank=role.rank, generation=role.generation, joiner=role.muted, repeatable=repeatable)
        self.member.rehearsals = self.node.supervisor.rehearsals
        self._stand_in(self._loop_of(role.hint_step + 1) if role.muted else 0)
        self._check_store(role.generation, role.store_port, opened=not role.muted)
        self.communicates = not role.muted
        self.protection.holders = role.placement.holders
        self.node.speak(self, messages.RankJoined(generation=role.generation, rank=role.rank, pid=self.pid))
        self._later(0.1, 1.0, self._constructed)

    def act(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Break() if not self.raised:
                    self._broken()
                case Break():
                    pass
                case Leave():
                    self.node.process_ends(self, exit_code=137, signal=9)
                case Recover(order=order):
                    self._recover(order)
                case (
                    messages.RankPrepared()
                    | messages.RankBroken()
                    | messages.RankFailed()
                    | messages.RankFinished()
                    | messages.RankRaised()
                    | messages.RankReopened()
                ):
                    self.node.speak(self, action)
                case _:
                    assert_never(action)

    def _later(self, low_s: float, high_s: float, action: Any, *arguments: Any) -> None:
        """Goes on with the main thread later, unless it does something else by then."""
        self.world.at(self.world.between(low_s, high_s), self._continue, self._thread, action, arguments)

    def _continue(self, thread: int, action: Any, arguments: tuple[Any, ...]) -> None:
        if self.alive and not self.frozen and not self.hung and not self.raised and thread == self._thread:
            action(*arguments)

    # ------------------------------------------------------------ the main thread

    def _constructed(self) -> None:
        member = self._member()
        if member.phase is RankPhase.REHEARSE:
            self._rehearse()
            self.act(member.quiesced(clean=True))
            return
        self.content = self._start_content(member.running)
        step = self.truth.steps[self.content]
        self._stand_in(self._loop_of(step))
        member.begun(step)
        self._settle(step)
        if step > 0 and member.phase is RankPhase.RUN:
            self._rehearse()
        if member.phase is RankPhase.BROKEN:
            self._boundary_broken()
            return
        self.truth.goes_live(member.running, member.rank, self.pid, self.content, step)
        self.truth.groups(member.running).unverified.update(range(step, step + SETTLING_STATES))
        self._go_on(step)

    def _loop_of(self, step: int) -> int:
        """Returns the loop that goes on from S_step: a joiner, and a start from a checkpoint, pass those before it."""
        loops = self.node.supervisor.loops
        return next(index for index, loop in enumerate(loops) if step <= loop.until)

    def _stand_in(self, index: int) -> None:
        self.loop, loop = index, self.node.supervisor.loops[index]
        self._member().stands_in(start=loop.start, until=loop.until, first=index == 0)

    def _rehearse(self) -> None:
        while not self._member().rehearsed:
            self._attempted()

    def _attempted(self) -> None:
        self._member().attempted()
        self._has_layout = True

    def _settle(self, step: int) -> None:
        """S_step is in the process: its DDP is brought to what the state has recorded, if not only steps do that."""
        if self.node.supervisor.rehearsals <= 1:
            self._has_layout = step > 0

    def _start_content(self, generation: int) -> int:
        """Returns the state that a start begins with: the first rank to ask chooses the newest checkpoint, if there is one."""
        groups = self.truth.groups(generation)
        if groups.start is None:
            groups.start = self.truth.checkpoint
            self.truth.starts_from(self.truth.steps.get(groups.start, NO_STEP))
        return groups.start or self.truth.first_content(generation)

    def _go_on(self, step: int) -> None:
        """S_step is in the process, fresh from a start or a restore."""
        self.protection.begin(step)
        self.protection.protect(step)
        self._step(step)

    def _step(self, step: int) -> None:
        if step >= self.until:
            if self.protection.done_step >= step:
                self.act(self._member().finished(step))
            return
        self._later(0.05, 0.2, self.fence, step)

    def fence(self, step: int) -> None:
        if not self.protection.is_copied(step):
            return  # it says when
        if self._member().optimizer_began():
            self._later(0.001, 0.02, self._boundary, step)

    def _boundary(self, step: int) -> None:
        member = self._member()
        rebuilt = self._has_layout
        self._attempted()
        if not member.boundary(step):
            return
        if self._muted:
            raise self.truth.fail(f"rank {member.rank} took step {step} for complete, in which its calls were muted")
        if rebuilt != (step > 0):  # every rank has to sum as the unbroken run does, which is: otherwise from its second step on
            raise self.truth.fail(f"rank {member.rank} did step {step} live after {member.attempts - 1} attempts")
        begins = any(step == loop.start for loop in self.node.supervisor.loops[1:])
        self.truth.step_is_of_loop(self.content, self.node.supervisor.loops[self.loop], step, begins=begins)
        self.truth.stepped(member.running, member.rank, step + 1)
        self.steps_done += 1
        if self._resuming:
            self._resuming = False
            at_ns = int(self.world.now_s * 1e9)
            resumed = messages.RankResumed(generation=member.running, rank=member.rank, step=step + 1, at_ns=at_ns)
            self.node.speak(self, resumed)
        self.truth.yields(member.running, member.rank, step, member.yields)
        self._calls_in_body = member.yields and self.node.supervisor.bodies_communicate
        self._later(0.0, 0.1 if member.yields else 0.0, self._body, step, member.running)

    def _body(self, step: int, generation: int) -> None:
        """What the script does with the step that was yielded to it; where its ranks communicate there, each waits for all."""
        if self._calls_in_body and not self.truth.all_in_body(generation, self._member().rank, step):
            self._later(0.02, 0.05, self._body, step, generation)
            return
        if step == self.node.supervisor.leaves_at:
            self._leave_loop(step)
            return
        self._through_body()
        begins = self.loop > 0 and step == self.node.supervisor.loops[self.loop].start
        self.protection.protect(step + 1, needed=begins or step + 1 == self.until)  # as Loops.needs
        self._step(step + 1)

    def _leave_loop(self, step: int) -> None:
        """The script has left the loop in the body of this step: what it does until its end belongs to that."""
        member = self._member()
        finished = member.left()
        if not finished:
            return  # a collective has failed: where the generation breaks, in a moment, it goes on with the script's end
        self.act(finished)
        self.content = self.truth.next_content(self.content, member.running)
        self.protection.protect(step + 1, needed=True)
        self._later(0.0, 1.0, self._after_loop, member.running)

    def _after_loop(self, generation: int) -> None:
        if self._calls_in_body and not self.truth.all_after_loop(generation, self._member().rank):
            self._later(0.02, 0.05, self._after_loop, generation)
            return
        self.truth.had(self._member().running, self._member().rank, self.in_body)
        self._exit()

    # ------------------------------------------------------------ between two loops

    def _leaves_loop_at_its_end(self) -> None:
        self._last_step = self.until
        if self.loop + 1 == len(self.node.supervisor.loops):
            self.world.at(self.world.between(0.01, 0.5), self._exit)
            return
        generation, deadline_s = self._member().running, self.world.now_s + _OPERATION_TIMEOUT_S
        self._later(0.0, 0.5, self._between_loops, generation, deadline_s)
        self.world.at(1.5 * _OPERATION_TIMEOUT_S, self._was_only_slow, generation, deadline_s)

    def _was_only_slow(self, generation: int, deadline_s: float) -> None:
        """Where all ranks hang nobody waits for them: how long the script takes there is its own affair."""
        member, stands = self._member(), self.hung or self.frozen
        if self.alive and stands and member.phase is RankPhase.RELEASED and member.running == generation:
            self.hung = self.frozen = False
            self._between_loops(generation, deadline_s)

    def _between_loops(self, generation: int, deadline_s: float) -> None:
        """What the script does there changes the state; where its ranks communicate, each waits for all, though not for ever."""
        member = self._member()
        if member.phase is not RankPhase.RELEASED:
            return
        if self.node.supervisor.bodies_communicate and not self.truth.all_between(generation, member.rank, self.loop):
            if self.world.now_s > deadline_s:
                self.collective_fails(generation)
            else:
                self._later(0.02, 0.05, self._between_loops, generation, deadline_s)
            return
        self.content = self.truth.between_loops(self.content, generation)
        self.act(member.reopened())

    def _next_loop_begins(self) -> None:
        self._released = False
        self._stand_in(self.loop + 1)
        self._step(self._last_step)

    # ------------------------------------------------------------ the script's end

    def _through_body(self) -> None:
        member = self._member()
        self.truth.had(member.running, member.rank, self.in_body)
        self.content = self.truth.next_content(self.content, member.running)
        member.had()

    def _broken(self) -> None:
        """Muted: whatever the main thread is doing runs to its end; then it waits."""
        self._thread += 1
        self._muted = True
        member = self._member()
        self.protection.end()
        if member.phase is RankPhase.BROKEN:
            self._later(0.0, 0.3, self._boundary_broken)
        elif member.phase is RankPhase.RESTORE:
            self._later(0.0, 0.1, self._restore_cut_short)

    def _boundary_broken(self) -> None:
        if self.in_body != NO_STEP and self._calls_in_body:
            self.act(self._member().outside() or [])  # it waits in a call until it is killed
            return
        if self.in_body != NO_STEP and self.in_body == self.node.supervisor.leaves_at:
            self._later(0.0, 1.0, self._after_loop, self._member().running)
            return
        if self.in_body != NO_STEP:
            self._through_body()
        if self.protection.copying:
            self._later(0.01, 0.02, self._boundary_broken)  # the copy of the clean state is awaited
            return
        self._attempted()
        if not self._member().rehearsed:
            self._later(0.05, 0.2, self._boundary_broken)
            return
        self.act(self._member().quiesced(clean=self.protection.holds_live()))

    def collective_fails(self, generation: int, needs: tuple[int, ...] = ()) -> None:
        if self.alive and self.member is not None:
            actions = self.member.collective_failed(generation, "connection closed by peer", needs)
            self.act(actions)
            if actions and self.alive:  # only then does the generation break, in the thread that has reported it
                self.world.at(self.world.between(0.0, 0.05), self._breaks, self._thread)

    def _breaks(self, thread: int) -> None:
        if self.alive and thread == self._thread:  # else an order was quicker
            self._broken()

    @property
    def in_body(self) -> int:
        """The step whose loop body it is in, or has begun and not been through with."""
        return self.member.body_step if self.member is not None else NO_STEP

    def speaks_for(self, generation: int) -> bool:
        return self.member is not None and self.member.running == self.member.generation == generation

    def raises(self) -> None:
        """An error of the script: its process says so, and exits some time later."""
        member = self._member()
        self.raised = True
        self.node.speak(self, messages.RankRaised(generation=member.running, rank=member.rank, error="an error"))
        self.world.at(self.world.between(0.05, 4.0), self._exit_with_error)
        self.node.supervisor.peers_notice(self)

    def leaves(self) -> None:
        """Its script ends with 0 in a step: most say so first, and exit some time later."""
        member = self._member()
        self.raised = True
        if self.world.chance(0.7):
            self.act(member.exits("SystemExit"))
        self.world.at(self.world.between(0.001, 3.0), self._exit)
        self.node.supervisor.peers_notice(self)

    def _exit_with_error(self) -> None:
        if self.alive:
            self.node.process_ends(self, exit_code=1, error=f"an error in process {self.pid}")

    def _exit(self) -> None:
        """Its script has ended by itself; sometimes the interpreter dies on its way down."""
        if self.alive and self.world.chance(0.1):
            self.node.process_ends(self, exit_code=134, signal=6, script_ended=True)
        elif self.alive:
            self.node.process_ends(self, exit_code=0, script_ended=True)

    # ------------------------------------------------------------ a recovery

    def _recover(self, order: Reform) -> None:
        self._order = order
        self._thread += 1
        loop, step = self.node.supervisor.loops[self.loop], order.resume_step
        whole = loop.start < step <= loop.until or (step == loop.start and self.loop == 0)
        self.truth.check(whole, f"rank {self.rank} is in loop {self.loop}, {loop}, and is to go on from S_{step}")
        groups = self.truth.groups(order.generation)
        groups.arrived.add(self._member().rank)
        groups.planned = True
        if order.resume_step < SETTLING_STATES:
            groups.unverified.add(order.resume_step + 1)
        self._check_store(order.generation, order.store_port, opened=True)
        self.protection.holders = order.placements[0].holders
        self._await_others(order)

    def _await_others(self, order: Reform) -> None:
        if len(self.truth.groups(order.generation).arrived) < self.truth.world_size(order.generation):
            self._later(0.02, 0.05, self._await_others, order)
        elif self.world.chance(0.01):
            self.act(self._member().recovery_failed(order, "reform", "connection refused"))
        else:
            self._later(0.01, 0.1, self._reformed, order)

    def _reformed(self, order: Reform) -> None:
        member = self._member()
        self._muted, self.communicates = False, True
        self.node.speak(self, messages.RankReformed(generation=order.generation, rank=member.rank))
        source = order.sources[0]
        member.restoring(in_place=source.kind is SourceKind.LIVE)
        self._later(0.005, 0.1 if source.kind is SourceKind.LIVE else 0.3, self._restored, order, source)

    def _restored(self, order: Reform, source: Source) -> None:
        member = self._member()
        content, conflicts = fetch(self, source, StateId(generation=source.slot_generation, step=order.resume_step))
        if content is None:
            reason = f"no {source.kind} of step {order.resume_step}"
            self.act(member.recovery_failed(order, "restore", reason, conflicts=conflicts))
            return
        if not member.restored(order, StateId(generation=source.slot_generation, step=order.resume_step)):
            self.act(member.recovery_failed(order, "restore", "cut short"))
            return
        self.content = content
        self._settle(order.resume_step)
        self.protection.apart = was_apart(self, source, order.resume_step)
        self.truth.goes_live(order.generation, member.rank, self.pid, content, order.resume_step)
        restored = messages.RankRestored(
            generation=order.generation, rank=member.rank, step=order.resume_step, bytes_restored=0, conflicts=conflicts
        )
        self.node.speak(self, restored)
        self._resuming = True
        self._go_on(order.resume_step)

    def _restore_cut_short(self) -> None:
        assert self._order is not None
        if self._member().phase is RankPhase.RESTORE:
            self.act(self._member().recovery_failed(self._order, "reform", "cut short"))

    def _check_store(self, generation: int, port: int, *, opened: bool) -> None:
        """Each generation has a store of its own; the simulated ones listen on its number."""
        self.truth.check(port == generation or not opened, f"the groups of generation {generation} are to meet on store {port}")

    def _member(self) -> Member:
        assert self.member is not None
        return self.member
