"""The content of --summary-json: how the job went, for scripts."""

import dataclasses
from typing import Any

from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import RecoveryRecord
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.report.pulse import Pulse
from deadpool.supervisor.report.status import playing_nodes, spent


def summary(state: JobState, pulse: Pulse) -> dict[str, Any]:
    """`steps`: how many optimizer steps the job has completed, of `until`; 0 where that was never known.

    `generations`: how many memberships it has had.

    `goodput`: as SpentTimes says; `spent_s` sums to the wall clock but for its `node_s`. `reported`: the script's last numbers.
    `another_since_step`: from this step on it is not the unbroken run, for ranks were excluded; None: it is.
    """
    another_since_step = state.recovery.another_since_step
    spent_s = spent(state, pulse, now_s=state.account.mark_s or 0.0)
    step = max(state.progress.finished_step, state.progress.commit_step, *(rank.step for rank in state.roster.playing()))
    return {
        "job_id": state.config.job_id,
        "exit_code": state.ending.exit_code,
        "world_size": state.config.world_size,
        "steps": 0 if step == NO_STEP else step,
        "until": pulse.until(playing_nodes(state)),
        "commit_step": state.progress.commit_step,
        "generations": state.generation,
        "committed_steps_lost": sum(record.committed_steps_lost for record in state.recovery.records),
        "another_since_step": None if another_since_step == NO_STEP else another_since_step,
        "excluded": state.roster.excluded_ranks(),
        "exposed_stall_s": pulse.exposed_stall_s(),
        "goodput": spent_s.goodput,
        "goodput_spares_charged": spent_s.charged(len(state.roster.seats)),
        "spent_s": dataclasses.asdict(spent_s),
        "reported": pulse.reported(playing_nodes(state)),
        "recoveries": [_recovery(record) for record in state.recovery.records],
    }


def _recovery(record: RecoveryRecord) -> dict[str, Any]:
    fields = dataclasses.asdict(record)
    del fields["committed_steps_lost"]  # it is in the sum above
    return {("class" if name == "failure_class" else name): value for name, value in fields.items()}
