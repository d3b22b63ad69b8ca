"""A rank's way through a recovery: quiesce, report, wait for the plan, reform the groups, restore the state."""

import logging
import os

import torch

from deadpool.host.errors import DeadpoolError
from deadpool.proto.messages import BadCopy, RankReformed, RankRestored, Reform, Source, SourceKind
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.ddp_reducers import DdpReducers
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.restore import BadCopiesError, Restored, from_any_peer, from_elsewhere, from_own_slot
from deadpool.trainer_hooks.protection.vaults import Vaults
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.state.training_state import TrainingState

log = logging.getLogger(__name__)
_REFORM_SHARE = 5 / 6  # of the supervisor's deadline: a rank that cannot open its groups says so before it is given up


class Recovery:
    """For the main thread, out of the step."""

    def __init__(self, session: Session, state: TrainingState, protection: Protection, reducers: DdpReducers) -> None:
        self._session, self._state, self._protection, self._reducers = session, state, protection, reducers
        self._bad_copies: tuple[BadCopy, ...] = ()

    def run(self) -> Reform:
        """Goes through recoveries until one succeeds; returns its plan: the process holds that state, in that generation."""
        session = self._session
        ended = session.open().have_ended()  # what still runs might write into what is compared now
        clean = self._protection.quiesce() and ended
        with session.changed:
            if session.role.muted and torch.cuda.is_available():
                session.member.device_bytes = torch.cuda.memory_reserved()
            session.carry_out(session.member.quiesced(clean=clean))
        session.open().let_go()
        if session.role.hot:
            self._protection.stand_ready()
        while not self._carry_out(plan := session.await_plan()):
            pass
        return plan

    def _carry_out(self, plan: Reform) -> bool:
        session, member = self._session, self._session.member
        phase = "reform"
        try:
            store = session.connect_store(plan.store_host, plan.store_port)
            session.open().rehearse(False)
            groups = session.open().reform(
                generation=plan.generation,
                store=store,
                timeout_s=session.keeping.reform_timeout_s * _REFORM_SHARE,
                cancelled=session.cancelled,
                excluded=session.excluded,
            )
            session.send(
                RankReformed(generation=plan.generation, rank=session.rank, groups_kept=groups.kept, groups_opened=groups.opened)
            )
            phase = "restore"
            source = next(source for source in plan.sources if source.rank == session.rank)
            state, restored = self._restore(plan, source)
            session.open().rehearse(True)
            self._reducers.settle()
            session.open().rehearse(False)
        except (DeadpoolError, RuntimeError, OSError) as error:
            log.warning("generation %d: %s failed: %s", plan.generation, phase, error)
            bad_copies, conflicts = (error.copies, error.conflicts) if isinstance(error, BadCopiesError) else ((), ())
            self._bad_copies += bad_copies  # said again with RankRestored: a newer generation may keep this one from being heard
            with session.changed:
                session.carry_out(member.recovery_failed(plan, phase, str(error), bad_copies, conflicts))
            if phase == "restore":
                session.open().break_generation(plan.generation, str(error))  # they are open already, and will not be used
            return False
        with session.changed:
            if not member.restored(plan, state):
                session.carry_out(member.recovery_failed(plan, phase, "overtaken"))
                return False
            session.send(
                RankRestored(
                    generation=plan.generation,
                    rank=session.rank,
                    step=plan.resume_step,
                    bytes_restored=restored.bytes_restored,
                    bad_copies=(*self._bad_copies, *restored.bad_copies),
                    conflicts=restored.conflicts,
                )
            )
            self._bad_copies = ()
        os.environ.update(MASTER_ADDR=plan.store_host, MASTER_PORT=str(plan.store_port))
        return True

    def _restore(self, plan: Reform, source: Source) -> tuple[StateId, Restored]:
        """Makes the process hold S_resume_step and returns its identity and what was moved for it."""
        wanted = StateId(generation=source.slot_generation, step=plan.resume_step)
        with self._session.changed:
            self._session.member.restoring(in_place=source.kind is SourceKind.LIVE)
        match source.kind:
            case SourceKind.LIVE:
                self._protection.restore_live(wanted)
                return wanted, Restored(bytes_restored=0, sharing=self._protection.sharing)
            case SourceKind.VAULT:
                restored = from_own_slot(self._state, self._protection.own_slots(), wanted, self._session.node_id)
            case SourceKind.REPLICA | SourceKind.ELSEWHERE:
                restored = from_elsewhere(self._state, source, plan.resume_step, self._vaults())
            case SourceKind.PEER:
                restored = from_any_peer(self._state, source, plan.resume_step, self._vaults())
        self._protection.holds(restored)
        return wanted, restored

    def _vaults(self) -> Vaults:
        session = self._session
        return Vaults(
            token=session.token,
            connections=session.keeping.replica_connections,
            node_id=session.node_id,
            folder=session.vault_dir,
        )
