"""A simulated rank's protect thread, in virtual time: copy, compare, replicate, announce (protection/pipeline.py)."""

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from sim.vault import Sealed

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP, Endpoint, SlotKind
from deadpool.proto.vault.slots import slot_to_write
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protocol import Member, RankPhase

if TYPE_CHECKING:
    from sim.node import SimNode
    from sim.rank import SimRank

_LATE = 0.2  # of the verdicts: a rank looks for them when it has looked in vain before
_LOOK_S = 0.2  # so much later (protection/looks.py)


class SimProtection:
    """`done_step`: committed or refused. `copying`: a copy of the live state is under way. `apart`: what this rank
    once held together with others travels.
    """

    def __init__(self, rank: "SimRank") -> None:
        self._rank = rank
        self.node: SimNode = rank.node
        self.world, self.truth = self.node.world, self.node.truth
        self.holders: tuple[Endpoint, ...] = ()
        self.copying = self.apart = False
        self._said_generation = 1
        self._unprotected = False
        self._looks = random.Random(f"looks {rank.number} {rank.pid}")
        self._sealed: Sealed | None = None  # the state in hand, once it is copied
        self.begin(0)

    def begin(self, step: int) -> None:
        """A generation begins, with S_step."""
        self._copied_step = NO_STEP  # the newest state that is sealed in the own vault
        self._fence_step = NO_STEP  # the step that waits for its state's copy
        self._protect_step = NO_STEP  # the state that waits for the verdict on the one before
        self._open_step = NO_STEP  # the state in hand, until the verdict on it is known
        self._announced = NO_STEP  # the state of which this rank has said that it has it safe, or refuses it
        self._verified = NO_STEP  # the newest state that was the same everywhere, in this generation
        self.done_step = NO_STEP
        intervals = self.node.supervisor.intervals
        self._schedule = Schedule(
            first_step=step,
            exchange_from=step,
            exchanges=0,
            keep_every=self.node.config.checkpoint_every,
            interval=intervals[0] if len(intervals) == 1 else 1,
        )

    def end(self) -> None:
        """The generation is broken: nobody waits, and nothing more is begun."""
        self._fence_step = self._protect_step = NO_STEP

    def is_copied(self, step: int) -> bool:
        """Returns whether S_step is; if not, the rank's fence is entered again when it is."""
        if self._copied_step < step:
            self._fence_step = step
            return False
        return True

    def holds_live(self) -> bool:
        """Returns whether the own vault holds the live state, and the process the same bytes."""
        live, content = self._member().live, self._rank.content
        held = self.node.vault.slots(SlotKind.SNAPSHOT, self._member().rank)
        return any(each is not None and each.state == live and each.content == content and not each.bad for each in held)

    def protect(self, step: int, *, needed: bool = False) -> None:
        """S_step is complete. `needed`: it is to be kept safe whatever the interval."""
        if not (needed or self._schedule.is_due(step)):
            self._copied_step = step  # nothing is copied: no fence waits
        elif self._open_step != NO_STEP:
            self._protect_step = step  # only then may the older slot be written
        else:
            self._begin(step)

    def _begin(self, step: int) -> None:
        member = self._member()
        self._schedule.begins(step)
        self._open_step = step
        slots, state = self.node.vault.slots(SlotKind.SNAPSHOT, member.rank), member.live
        assert state is not None
        assert state.step == step
        for index, held in enumerate(slots):
            if held is not None and held.state == state and not held.bad:
                self._copied(index, held, member.running)
                return
        sealed = Sealed(state, self._rank.content, () if self.apart else self._peers())
        index = slot_to_write([each.state if each is not None else None for each in slots], member.commit_step)
        slots[index] = None
        self.copying = True
        if not self.node.config.verify_every and step % 2:  # as if every other state were a large one
            self._begin_to_put(member.running, member.commit_step)
        self.world.at(self.world.between(0.01, 0.15), self._copied, index, sealed, member.running)

    def _peers(self) -> tuple[int, ...]:
        member, copies = self._member(), min(self.node.config.replicas, len(self.holders))
        return self.truth.peers_of(member.rank, member.running, copies)

    def _begin_to_put(self, generation: int, keep_step: int) -> None:
        """A large state is on its way while it is copied: what lay in the slots of its holders is torn from then on."""
        for endpoint in self.holders:
            holder = self.node.other(endpoint)
            if holder is not None and holder.alive and holder.core.generation <= generation:
                slots = holder.vault.slots(SlotKind.REPLICA, self._member().rank)
                slots[slot_to_write([each.state if each is not None else None for each in slots], keep_step)] = None

    def _copied(self, index: int, sealed: Sealed, generation: int) -> None:
        if not self._rank.alive:
            return
        self.copying = False
        member = self._member()
        self.node.vault.slots(SlotKind.SNAPSHOT, member.rank)[index] = sealed
        self._sealed = sealed
        self._copied_step = max(self._copied_step, sealed.state.step)
        if member.running != generation or member.phase is not RankPhase.RUN:
            return
        if self._fence_step == sealed.state.step:
            self._fence_step = NO_STEP
            self._rank.fence(sealed.state.step)
        if self.node.config.verify_every and sealed.state.step not in self.truth.groups(generation).unverified:
            self._show(sealed, generation)
        else:
            self._put(sealed, generation, self.holders, member.commit_step)

    def _in_hand(self) -> Sealed:
        """Returns the sealed state on which the verdict is not known yet. Whoever found it bad has torn its slot."""
        assert self._sealed is not None
        held = self.node.vault.slots(SlotKind.SNAPSHOT, self._member().rank)
        same = (each for each in held if each is not None and each.state == self._sealed.state)
        return next(same, replace(self._sealed, bad=True))

    def _show(self, sealed: Sealed, generation: int) -> None:
        """Tells the others what this rank holds; once all have told, all go on."""
        shown = self.truth.groups(generation).shown.setdefault(sealed.state.step, {})
        shown[self._member().rank] = sealed.content
        if len(shown) == self.truth.world_size(generation):
            for each in self._everyone(generation):
                self.world.at(self.world.between(0.001, 0.02), each.compared, generation, sealed.state.step, dict(shown))

    def compared(self, generation: int, step: int, shown: dict[int, int]) -> None:
        """As Protector._verified: an outvoted copy is discarded, and the step before, if it was verified, is what is left."""
        member = self._rank.member
        if not self._rank.alive or member is None or member.running != generation or member.phase is not RankPhase.RUN:
            return
        sealed = self._in_hand()
        before, value = self._verified, Counter(shown.values()).most_common(1)[0][0]
        wrong = tuple(sorted(rank for rank, content in shown.items() if content != value))
        discarded = bool(wrong) and before != NO_STEP and before == member.commit_step
        if not wrong:
            self._verified = step
        if discarded and member.rank in wrong:
            slots = self.node.vault.slots(SlotKind.SNAPSHOT, member.rank)
            slots[:] = [None if each == sealed else each for each in slots]
        if wrong and member.rank == min(shown.keys() - set(wrong)):
            repair = "discarded" if discarded else "none"
            self.truth.named |= not discarded
            differs = messages.StateDiffers(
                generation=generation,
                rank=member.rank,
                step=step,
                ranks=wrong,
                item="model/x",
                repair=repair,
                good_step=before if discarded else NO_STEP,
            )
            self.node.speak(self._rank, differs)
        if not discarded:
            self._put(sealed, generation, self.holders, member.commit_step)

    def _put(self, sealed: Sealed, generation: int, holders: tuple[Endpoint, ...], keep_step: int) -> None:
        """Sends the replica to each holder in turn; what is on its way arrives, whatever happens to the sender meanwhile."""
        if not holders:
            self._announce(sealed, generation)
            return
        holder = self.node.other(holders[0])
        if holder is not None and holder.suspension.holds(self._put, sealed, generation, holders, keep_step):
            return
        if holder is None or not holder.alive or holder.core.generation > generation:
            return  # no ack, no commit: the next generation names another holder
        if holder.full or sealed.bad:  # what arrives with other checksums is refused too
            self._refuse(sealed.state.step, generation)
            return
        slots = holder.vault.slots(SlotKind.REPLICA, self._member().rank)
        index = slot_to_write([each.state if each is not None else None for each in slots], keep_step)
        slots[index] = None
        self.world.at(self.world.between(0.005, 0.1), self._arrived, holder, index, sealed, generation, holders, keep_step)

    def _arrived(
        self, holder: "SimNode", index: int, sealed: Sealed, generation: int, holders: tuple[Endpoint, ...], keep_step: int
    ) -> None:
        if holder.suspension.holds(self._arrived, holder, index, sealed, generation, holders, keep_step):
            return
        if not holder.alive or (not self._rank.alive and self.world.chance(0.5)):
            return
        if holder.core.generation > generation:
            return  # the fence of the holder's agent: its vault does not change any more behind its report
        slots = holder.vault.slots(SlotKind.REPLICA, self._member().rank)
        slots[:] = [None if each is not None and each.state == sealed.state else each for each in slots]
        slots[index] = sealed
        if self._rank.alive:
            self._put(sealed, generation, holders[1:], keep_step)

    def _announce(self, sealed: Sealed, generation: int) -> None:
        self._announced = sealed.state.step
        store = self.node.at(self.truth.groups(generation).store_at)
        said = self.truth.groups(generation).said.setdefault(sealed.state.step, {})
        if store is not None and store.alive:
            said[self._member().rank] = sealed
            wishes = self.truth.groups(generation).wishes.setdefault(sealed.state.step, [])
            wishes.append(self.world.random.choice(self.node.supervisor.intervals))
            if len(said) == self.truth.world_size(generation):
                self._verdict(sealed.state.step, generation, said)
        if sealed.state.step in self.truth.groups(generation).refused:
            self.world.at(self.world.between(0.001, 0.05), self.refused_known, generation, sealed.state.step)

    def _verdict(self, step: int, generation: int, said: dict[int, Sealed]) -> None:
        """The last rank to announce compares what all hold together, and says what has become of the state."""
        contents = {sealed.content for sealed in said.values()}
        together = {bool(sealed.peers) for sealed in said.values()}
        alike = len(contents) == 1 and not self.truth.are_apart(step)
        gone = {peer for sealed in said.values() for peer in sealed.peers} - said.keys()  # excluded: they say nothing
        if gone or len(together) > 1 or (True in together and not alike):
            said.clear()
            for each in self._everyone(generation):
                self.world.at(self.world.between(0.001, 0.05), each.parted, generation, step, alike)
            return
        for rank, sealed in said.items():
            self.truth.announce(generation, rank, sealed.content)
        self.node.write_checkpoint(generation, contents.pop())
        interval = max(self.truth.groups(generation).wishes[step])
        for each in self._everyone(generation):
            late_s = _LOOK_S if self._looks.random() < _LATE else 0.0
            self.world.at(late_s + self.world.between(0.001, 0.05), each.commit_known, generation, step, interval)

    def parted(self, generation: int, step: int, alike: bool) -> None:
        """As Protector._protect_apart: the same state is sealed, sent and announced again."""
        member = self._rank.member
        if not self._rank.alive or member is None or member.running != generation or member.phase is not RankPhase.RUN:
            return
        if not self._announced == self._open_step == step:
            return
        slots, sealed = self.node.vault.slots(SlotKind.SNAPSHOT, member.rank), self._in_hand()
        again = replace(sealed, peers=self._peers() if alike else ())
        slots[:] = [again if each == sealed else each for each in slots]
        self.apart = not alike
        self._put(again, generation, self.holders, member.commit_step)

    def _refuse(self, step: int, generation: int) -> None:
        """This rank cannot protect S_step: nobody waits for its commit. Who has not announced it yet hears that then."""
        self._announced = step
        self.truth.groups(generation).refused.add(step)
        member = self._member()
        said = messages.ProtectionChanged(generation=generation, rank=member.rank, step=step, reason="no room")
        self.node.speak(self._rank, said)
        for each in self._everyone(generation):
            self.world.at(self.world.between(0.001, 0.05), each.refused_known, generation, step)

    def refused_known(self, generation: int, step: int) -> None:
        member = self._rank.member
        if not self._rank.alive or member is None or member.running != generation or member.phase is not RankPhase.RUN:
            return
        if not self._announced == self._open_step == step:
            return
        self._schedule.refused(step)
        self._unprotected = True
        self._done(step)

    def _done(self, step: int) -> None:
        """All that comes of S_step has come of it."""
        self._open_step, self.done_step = NO_STEP, step
        self._protect_waiting()
        member = self._member()
        if member.live is not None and member.live.step == step == self._rank.until and self._rank.in_body == NO_STEP:
            self.truth.ended_unprotected |= member.commit_step < step
            self._rank.act(member.finished(step))

    def commit_known(self, generation: int, step: int, interval: int) -> None:
        member = self._rank.member
        if not self._rank.alive or member is None or member.running != generation or member.phase is not RankPhase.RUN:
            return
        member.commit_known(generation, step)
        if self._unprotected or (member.rank == 0 and self._said_generation < generation):
            self._unprotected, self._said_generation = False, generation
            self.node.speak(self._rank, messages.ProtectionChanged(generation=generation, rank=member.rank, step=step, reason=""))
        self._schedule.committed(step, interval)
        self._done(step)

    def _protect_waiting(self) -> None:
        if self._protect_step != NO_STEP and self._member().phase is RankPhase.RUN:
            waiting, self._protect_step = self._protect_step, NO_STEP
            self._begin(waiting)

    def _everyone(self, generation: int) -> "list[SimProtection]":
        """Returns those of all processes that run in that generation."""
        return [each.protection for each in self.node.everyone() if each.member is not None and each.member.running == generation]

    def _member(self) -> Member:
        assert self._rank.member is not None
        return self._rank.member
