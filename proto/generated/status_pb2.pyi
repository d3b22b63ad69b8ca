from deadpool.proto.generated import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankStatus(_message.Message):
    __slots__ = ("rank", "pid", "step", "commit_step", "exposed_stall_s", "step_s", "wait_s", "rss_bytes", "slow_times")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_STALL_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOW_TIMES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    step: int
    commit_step: int
    exposed_stall_s: float
    step_s: float
    wait_s: float
    rss_bytes: int
    slow_times: float
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., commit_step: _Optional[int] = ..., exposed_stall_s: _Optional[float] = ..., step_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., slow_times: _Optional[float] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "index", "role", "host", "heartbeat_age_s", "cpu_share", "memory_share", "shm_free_bytes", "standins_ready", "ranks", "troubles", "clock_ahead_s", "port", "hot_ranks", "gpu_busy_share", "gpu_memory_share", "sent_bytes_per_s", "received_bytes_per_s", "replicated_bytes_per_s", "metrics_port", "hot_bytes", "hot_device_bytes", "domain", "keeps", "lost_why", "lost_ago_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHARE_FIELD_NUMBER: _ClassVar[int]
    SHM_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDINS_READY_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    CLOCK_AHEAD_S_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    HOT_RANKS_FIELD_NUMBER: _ClassVar[int]
    GPU_BUSY_SHARE_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_SHARE_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    HOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    HOT_DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    LOST_WHY_FIELD_NUMBER: _ClassVar[int]
    LOST_AGO_S_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    index: int
    role: str
    host: str
    heartbeat_age_s: float
    cpu_share: float
    memory_share: float
    shm_free_bytes: int
    standins_ready: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankStatus]
    troubles: _containers.RepeatedScalarFieldContainer[str]
    clock_ahead_s: float
    port: int
    hot_ranks: _containers.RepeatedScalarFieldContainer[int]
    gpu_busy_share: float
    gpu_memory_share: float
    sent_bytes_per_s: float
    received_bytes_per_s: float
    replicated_bytes_per_s: float
    metrics_port: int
    hot_bytes: int
    hot_device_bytes: int
    domain: str
    keeps: _containers.RepeatedScalarFieldContainer[int]
    lost_why: str
    lost_ago_s: float
    def __init__(self, node_id: _Optional[str] = ..., index: _Optional[int] = ..., role: _Optional[str] = ..., host: _Optional[str] = ..., heartbeat_age_s: _Optional[float] = ..., cpu_share: _Optional[float] = ..., memory_share: _Optional[float] = ..., shm_free_bytes: _Optional[int] = ..., standins_ready: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankStatus, _Mapping]]] = ..., troubles: _Optional[_Iterable[str]] = ..., clock_ahead_s: _Optional[float] = ..., port: _Optional[int] = ..., hot_ranks: _Optional[_Iterable[int]] = ..., gpu_busy_share: _Optional[float] = ..., gpu_memory_share: _Optional[float] = ..., sent_bytes_per_s: _Optional[float] = ..., received_bytes_per_s: _Optional[float] = ..., replicated_bytes_per_s: _Optional[float] = ..., metrics_port: _Optional[int] = ..., hot_bytes: _Optional[int] = ..., hot_device_bytes: _Optional[int] = ..., domain: _Optional[str] = ..., keeps: _Optional[_Iterable[int]] = ..., lost_why: _Optional[str] = ..., lost_ago_s: _Optional[float] = ...) -> None: ...

class PhaseTimes(_message.Message):
    __slots__ = ("detect", "decide", "quiesce", "plan", "reform", "restore", "first_step")
    DETECT_FIELD_NUMBER: _ClassVar[int]
    DECIDE_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REFORM_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    detect: float
    decide: float
    quiesce: float
    plan: float
    reform: float
    restore: float
    first_step: float
    def __init__(self, detect: _Optional[float] = ..., decide: _Optional[float] = ..., quiesce: _Optional[float] = ..., plan: _Optional[float] = ..., reform: _Optional[float] = ..., restore: _Optional[float] = ..., first_step: _Optional[float] = ...) -> None: ...

class SpentTimes(_message.Message):
    __slots__ = ("assembling", "starting", "productive", "again", "stalled", "recovering", "waiting", "finishing", "node_s")
    ASSEMBLING_FIELD_NUMBER: _ClassVar[int]
    STARTING_FIELD_NUMBER: _ClassVar[int]
    PRODUCTIVE_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    STALLED_FIELD_NUMBER: _ClassVar[int]
    RECOVERING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FINISHING_FIELD_NUMBER: _ClassVar[int]
    NODE_S_FIELD_NUMBER: _ClassVar[int]
    assembling: float
    starting: float
    productive: float
    again: float
    stalled: float
    recovering: float
    waiting: float
    finishing: float
    node_s: float
    def __init__(self, assembling: _Optional[float] = ..., starting: _Optional[float] = ..., productive: _Optional[float] = ..., again: _Optional[float] = ..., stalled: _Optional[float] = ..., recovering: _Optional[float] = ..., waiting: _Optional[float] = ..., finishing: _Optional[float] = ..., node_s: _Optional[float] = ...) -> None: ...

class RecoveryRecord(_message.Message):
    __slots__ = ("generation", "cause", "failure_class", "node", "ranks", "spare", "resume_step", "steps_reexecuted", "survivors_kept_processes", "phases_s", "total_s", "committed_steps_lost", "moved", "ended_s", "exposed_s", "excluded", "returned", "groups_kept", "groups_opened")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CLASS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SPARE_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_REEXECUTED_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_KEPT_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PHASES_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEPS_LOST_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_S_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_KEPT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_OPENED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    cause: str
    failure_class: str
    node: str
    ranks: _containers.RepeatedScalarFieldContainer[int]
    spare: str
    resume_step: int
    steps_reexecuted: int
    survivors_kept_processes: bool
    phases_s: PhaseTimes
    total_s: float
    committed_steps_lost: int
    moved: _containers.RepeatedScalarFieldContainer[int]
    ended_s: float
    exposed_s: float
    excluded: _containers.RepeatedScalarFieldContainer[int]
    returned: _containers.RepeatedScalarFieldContainer[int]
    groups_kept: int
    groups_opened: int
    def __init__(self, generation: _Optional[int] = ..., cause: _Optional[str] = ..., failure_class: _Optional[str] = ..., node: _Optional[str] = ..., ranks: _Optional[_Iterable[int]] = ..., spare: _Optional[str] = ..., resume_step: _Optional[int] = ..., steps_reexecuted: _Optional[int] = ..., survivors_kept_processes: _Optional[bool] = ..., phases_s: _Optional[_Union[PhaseTimes, _Mapping]] = ..., total_s: _Optional[float] = ..., committed_steps_lost: _Optional[int] = ..., moved: _Optional[_Iterable[int]] = ..., ended_s: _Optional[float] = ..., exposed_s: _Optional[float] = ..., excluded: _Optional[_Iterable[int]] = ..., returned: _Optional[_Iterable[int]] = ..., groups_kept: _Optional[int] = ..., groups_opened: _Optional[int] = ...) -> None: ...

class ReportedNumber(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class JobStatus(_message.Message):
    __slots__ = ("job_id", "phase", "generation", "step", "commit_step", "steps_per_s", "world_size", "hooked", "exposed_stall_s", "nodes", "recoveries", "unprotected", "checkpoint_step", "spent_s", "until", "tokens_per_s", "reported", "step_times_s", "waiting_for", "replicas", "snapshot_every", "snapshot_s", "steps_at_risk", "domains_lost_max", "excluded", "another_since_step", "spares")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    HOOKED_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_STALL_S_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    RECOVERIES_FIELD_NUMBER: _ClassVar[int]
    UNPROTECTED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    SPENT_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    STEP_TIMES_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EVERY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_S_FIELD_NUMBER: _ClassVar[int]
    STEPS_AT_RISK_FIELD_NUMBER: _ClassVar[int]
    DOMAINS_LOST_MAX_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    ANOTHER_SINCE_STEP_FIELD_NUMBER: _ClassVar[int]
    SPARES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    phase: str
    generation: int
    step: int
    commit_step: int
    steps_per_s: float
    world_size: int
    hooked: bool
    exposed_stall_s: float
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    recoveries: _containers.RepeatedCompositeFieldContainer[RecoveryRecord]
    unprotected: str
    checkpoint_step: int
    spent_s: SpentTimes
    until: int
    tokens_per_s: float
    reported: _containers.RepeatedCompositeFieldContainer[ReportedNumber]
    step_times_s: _containers.RepeatedScalarFieldContainer[float]
    waiting_for: str
    replicas: int
    snapshot_every: int
    snapshot_s: float
    steps_at_risk: int
    domains_lost_max: int
    excluded: _containers.RepeatedScalarFieldContainer[int]
    another_since_step: int
    spares: int
    def __init__(self, job_id: _Optional[str] = ..., phase: _Optional[str] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., commit_step: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., world_size: _Optional[int] = ..., hooked: _Optional[bool] = ..., exposed_stall_s: _Optional[float] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., recoveries: _Optional[_Iterable[_Union[RecoveryRecord, _Mapping]]] = ..., unprotected: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., spent_s: _Optional[_Union[SpentTimes, _Mapping]] = ..., until: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., reported: _Optional[_Iterable[_Union[ReportedNumber, _Mapping]]] = ..., step_times_s: _Optional[_Iterable[float]] = ..., waiting_for: _Optional[str] = ..., replicas: _Optional[int] = ..., snapshot_every: _Optional[int] = ..., snapshot_s: _Optional[float] = ..., steps_at_risk: _Optional[int] = ..., domains_lost_max: _Optional[int] = ..., excluded: _Optional[_Iterable[int]] = ..., another_since_step: _Optional[int] = ..., spares: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("follow",)
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    follow: bool
    def __init__(self, follow: _Optional[bool] = ...) -> None: ...

class EventLine(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class InjectRequest(_message.Message):
    __slots__ = ("kind", "target", "step")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    target: int
    step: int
    def __init__(self, kind: _Optional[str] = ..., target: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("node", "reason", "undo", "gone")
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNDO_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    node: str
    reason: str
    undo: bool
    gone: bool
    def __init__(self, node: _Optional[str] = ..., reason: _Optional[str] = ..., undo: _Optional[bool] = ..., gone: _Optional[bool] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Diagnosis(_message.Message):
    __slots__ = ("generation", "ranks", "missing", "why")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    generation: int
    ranks: _containers.RepeatedCompositeFieldContainer[_agent_pb2.RankCalls]
    missing: _containers.RepeatedScalarFieldContainer[str]
    why: str
    def __init__(self, generation: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[_agent_pb2.RankCalls, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ..., why: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...
