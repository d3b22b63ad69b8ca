from deadpool.proto.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "store_opened", "launch_failed", "vault_report", "injection_due", "stopped", "rank_exited", "rank_joined", "rank_broken", "rank_prepared", "rank_reformed", "rank_restored", "rank_failed", "rank_resumed", "rank_finished", "protection_changed", "state_differs", "checkpoint_written", "host_trouble", "job_signalled", "edge_changed", "call_report", "rank_raised", "drill_ready", "rank_reopened", "ranks_said", "number")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STORE_OPENED_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FAILED_FIELD_NUMBER: _ClassVar[int]
    VAULT_REPORT_FIELD_NUMBER: _ClassVar[int]
    INJECTION_DUE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    RANK_EXITED_FIELD_NUMBER: _ClassVar[int]
    RANK_JOINED_FIELD_NUMBER: _ClassVar[int]
    RANK_BROKEN_FIELD_NUMBER: _ClassVar[int]
    RANK_PREPARED_FIELD_NUMBER: _ClassVar[int]
    RANK_REFORMED_FIELD_NUMBER: _ClassVar[int]
    RANK_RESTORED_FIELD_NUMBER: _ClassVar[int]
    RANK_FAILED_FIELD_NUMBER: _ClassVar[int]
    RANK_RESUMED_FIELD_NUMBER: _ClassVar[int]
    RANK_FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROTECTION_CHANGED_FIELD_NUMBER: _ClassVar[int]
    STATE_DIFFERS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    HOST_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    JOB_SIGNALLED_FIELD_NUMBER: _ClassVar[int]
    EDGE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    CALL_REPORT_FIELD_NUMBER: _ClassVar[int]
    RANK_RAISED_FIELD_NUMBER: _ClassVar[int]
    DRILL_READY_FIELD_NUMBER: _ClassVar[int]
    RANK_REOPENED_FIELD_NUMBER: _ClassVar[int]
    RANKS_SAID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    store_opened: StoreOpened
    launch_failed: _common_pb2.LaunchFailed
    vault_report: VaultReport
    injection_due: InjectionDue
    stopped: Stopped
    rank_exited: RankExited
    rank_joined: _common_pb2.RankJoined
    rank_broken: _common_pb2.RankBroken
    rank_prepared: _common_pb2.RankPrepared
    rank_reformed: _common_pb2.RankReformed
    rank_restored: _common_pb2.RankRestored
    rank_failed: _common_pb2.RankFailed
    rank_resumed: _common_pb2.RankResumed
    rank_finished: _common_pb2.RankFinished
    protection_changed: _common_pb2.ProtectionChanged
    state_differs: _common_pb2.StateDiffers
    checkpoint_written: CheckpointWritten
    host_trouble: HostTrouble
    job_signalled: JobSignalled
    edge_changed: EdgeChanged
    call_report: CallReport
    rank_raised: _common_pb2.RankRaised
    drill_ready: _common_pb2.DrillReady
    rank_reopened: _common_pb2.RankReopened
    ranks_said: RanksSaid
    number: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., store_opened: _Optional[_Union[StoreOpened, _Mapping]] = ..., launch_failed: _Optional[_Union[_common_pb2.LaunchFailed, _Mapping]] = ..., vault_report: _Optional[_Union[VaultReport, _Mapping]] = ..., injection_due: _Optional[_Union[InjectionDue, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ..., rank_exited: _Optional[_Union[RankExited, _Mapping]] = ..., rank_joined: _Optional[_Union[_common_pb2.RankJoined, _Mapping]] = ..., rank_broken: _Optional[_Union[_common_pb2.RankBroken, _Mapping]] = ..., rank_prepared: _Optional[_Union[_common_pb2.RankPrepared, _Mapping]] = ..., rank_reformed: _Optional[_Union[_common_pb2.RankReformed, _Mapping]] = ..., rank_restored: _Optional[_Union[_common_pb2.RankRestored, _Mapping]] = ..., rank_failed: _Optional[_Union[_common_pb2.RankFailed, _Mapping]] = ..., rank_resumed: _Optional[_Union[_common_pb2.RankResumed, _Mapping]] = ..., rank_finished: _Optional[_Union[_common_pb2.RankFinished, _Mapping]] = ..., protection_changed: _Optional[_Union[_common_pb2.ProtectionChanged, _Mapping]] = ..., state_differs: _Optional[_Union[_common_pb2.StateDiffers, _Mapping]] = ..., checkpoint_written: _Optional[_Union[CheckpointWritten, _Mapping]] = ..., host_trouble: _Optional[_Union[HostTrouble, _Mapping]] = ..., job_signalled: _Optional[_Union[JobSignalled, _Mapping]] = ..., edge_changed: _Optional[_Union[EdgeChanged, _Mapping]] = ..., call_report: _Optional[_Union[CallReport, _Mapping]] = ..., rank_raised: _Optional[_Union[_common_pb2.RankRaised, _Mapping]] = ..., drill_ready: _Optional[_Union[_common_pb2.DrillReady, _Mapping]] = ..., rank_reopened: _Optional[_Union[_common_pb2.RankReopened, _Mapping]] = ..., ranks_said: _Optional[_Union[RanksSaid, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("welcome", "open_store", "start_ranks", "warm_up", "quiesce", "assign", "kill_ranks", "reform", "release", "inject", "injection_ack", "stop", "write_checkpoint", "report_calls", "drill_over", "begin_loop", "route", "number", "heard")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPEN_STORE_FIELD_NUMBER: _ClassVar[int]
    START_RANKS_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    KILL_RANKS_FIELD_NUMBER: _ClassVar[int]
    REFORM_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    INJECT_FIELD_NUMBER: _ClassVar[int]
    INJECTION_ACK_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    REPORT_CALLS_FIELD_NUMBER: _ClassVar[int]
    DRILL_OVER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_LOOP_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    open_store: OpenStore
    start_ranks: StartRanks
    warm_up: WarmUp
    quiesce: _common_pb2.Quiesce
    assign: Assign
    kill_ranks: KillRanks
    reform: _common_pb2.Reform
    release: _common_pb2.Release
    inject: Inject
    injection_ack: InjectionAck
    stop: Stop
    write_checkpoint: _common_pb2.WriteCheckpoint
    report_calls: ReportCalls
    drill_over: _common_pb2.DrillOver
    begin_loop: _common_pb2.BeginLoop
    route: Route
    number: int
    heard: int
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., open_store: _Optional[_Union[OpenStore, _Mapping]] = ..., start_ranks: _Optional[_Union[StartRanks, _Mapping]] = ..., warm_up: _Optional[_Union[WarmUp, _Mapping]] = ..., quiesce: _Optional[_Union[_common_pb2.Quiesce, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., kill_ranks: _Optional[_Union[KillRanks, _Mapping]] = ..., reform: _Optional[_Union[_common_pb2.Reform, _Mapping]] = ..., release: _Optional[_Union[_common_pb2.Release, _Mapping]] = ..., inject: _Optional[_Union[Inject, _Mapping]] = ..., injection_ack: _Optional[_Union[InjectionAck, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., write_checkpoint: _Optional[_Union[_common_pb2.WriteCheckpoint, _Mapping]] = ..., report_calls: _Optional[_Union[ReportCalls, _Mapping]] = ..., drill_over: _Optional[_Union[_common_pb2.DrillOver, _Mapping]] = ..., begin_loop: _Optional[_Union[_common_pb2.BeginLoop, _Mapping]] = ..., route: _Optional[_Union[Route, _Mapping]] = ..., number: _Optional[int] = ..., heard: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node_id", "hint", "host", "port", "pid", "generation", "incarnation", "obeyed", "readings", "conversation", "version", "stream", "moves", "domain")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OBEYED_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hint: int
    host: str
    port: int
    pid: int
    generation: int
    incarnation: int
    obeyed: int
    readings: _containers.RepeatedCompositeFieldContainer[Reading]
    conversation: int
    version: _common_pb2.Version
    stream: int
    moves: bool
    domain: str
    def __init__(self, node_id: _Optional[str] = ..., hint: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., pid: _Optional[int] = ..., generation: _Optional[int] = ..., incarnation: _Optional[int] = ..., obeyed: _Optional[int] = ..., readings: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., conversation: _Optional[int] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ..., stream: _Optional[int] = ..., moves: _Optional[bool] = ..., domain: _Optional[str] = ...) -> None: ...

class RankProgress(_message.Message):
    __slots__ = ("rank", "pid", "step", "commit_step", "steps_done", "exposed_stall_s", "stopped", "step_age_s", "stepped_s", "waited_s", "rss_bytes", "snapshot_every", "snapshot_s")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_STALL_S_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_S_FIELD_NUMBER: _ClassVar[int]
    STEPPED_S_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_EVERY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_S_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    step: int
    commit_step: int
    steps_done: int
    exposed_stall_s: float
    stopped: bool
    step_age_s: float
    stepped_s: float
    waited_s: float
    rss_bytes: int
    snapshot_every: int
    snapshot_s: float
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., commit_step: _Optional[int] = ..., steps_done: _Optional[int] = ..., exposed_stall_s: _Optional[float] = ..., stopped: _Optional[bool] = ..., step_age_s: _Optional[float] = ..., stepped_s: _Optional[float] = ..., waited_s: _Optional[float] = ..., rss_bytes: _Optional[int] = ..., snapshot_every: _Optional[int] = ..., snapshot_s: _Optional[float] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("generation", "ranks", "cpu_share", "memory_share", "shm_free_bytes", "standins_ready", "readings", "obeyed", "wall_s", "until", "tokens", "reported", "sent_bytes", "received_bytes", "replicated_bytes", "metrics_port", "hot_bytes")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    CPU_SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHARE_FIELD_NUMBER: _ClassVar[int]
    SHM_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDINS_READY_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    OBEYED_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICATED_BYTES_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    HOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    generation: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankProgress]
    cpu_share: float
    memory_share: float
    shm_free_bytes: int
    standins_ready: int
    readings: _containers.RepeatedCompositeFieldContainer[Reading]
    obeyed: int
    wall_s: float
    until: int
    tokens: float
    reported: _containers.RepeatedCompositeFieldContainer[Reading]
    sent_bytes: int
    received_bytes: int
    replicated_bytes: int
    metrics_port: int
    hot_bytes: int
    def __init__(self, generation: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankProgress, _Mapping]]] = ..., cpu_share: _Optional[float] = ..., memory_share: _Optional[float] = ..., shm_free_bytes: _Optional[int] = ..., standins_ready: _Optional[int] = ..., readings: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., obeyed: _Optional[int] = ..., wall_s: _Optional[float] = ..., until: _Optional[int] = ..., tokens: _Optional[float] = ..., reported: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., replicated_bytes: _Optional[int] = ..., metrics_port: _Optional[int] = ..., hot_bytes: _Optional[int] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class GroupCall(_message.Message):
    __slots__ = ("group", "operation", "entered", "completed")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    group: str
    operation: str
    entered: int
    completed: int
    def __init__(self, group: _Optional[str] = ..., operation: _Optional[str] = ..., entered: _Optional[int] = ..., completed: _Optional[int] = ...) -> None: ...

class RankCalls(_message.Message):
    __slots__ = ("rank", "pid", "step", "groups", "stacks", "stopped")
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    rank: int
    pid: int
    step: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupCall]
    stacks: str
    stopped: bool
    def __init__(self, rank: _Optional[int] = ..., pid: _Optional[int] = ..., step: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupCall, _Mapping]]] = ..., stacks: _Optional[str] = ..., stopped: _Optional[bool] = ...) -> None: ...

class CallReport(_message.Message):
    __slots__ = ("generation", "ranks")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    ranks: _containers.RepeatedCompositeFieldContainer[RankCalls]
    def __init__(self, generation: _Optional[int] = ..., ranks: _Optional[_Iterable[_Union[RankCalls, _Mapping]]] = ...) -> None: ...

class ReportCalls(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class StoreOpened(_message.Message):
    __slots__ = ("generation", "host", "port")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    host: str
    port: int
    def __init__(self, generation: _Optional[int] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class VaultReport(_message.Message):
    __slots__ = ("generation", "slots")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    slots: _containers.RepeatedCompositeFieldContainer[_common_pb2.Slot]
    def __init__(self, generation: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[_common_pb2.Slot, _Mapping]]] = ...) -> None: ...

class InjectionDue(_message.Message):
    __slots__ = ("injection_id", "at_ns")
    INJECTION_ID_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    injection_id: int
    at_ns: int
    def __init__(self, injection_id: _Optional[int] = ..., at_ns: _Optional[int] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RankExited(_message.Message):
    __slots__ = ("generation", "rank", "pid", "exit_code", "signal", "error", "log_tail", "step", "commit_step", "yielded", "script_ended", "hot")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    YIELDED_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_ENDED_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    pid: int
    exit_code: int
    signal: int
    error: str
    log_tail: str
    step: int
    commit_step: int
    yielded: int
    script_ended: bool
    hot: bool
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., error: _Optional[str] = ..., log_tail: _Optional[str] = ..., step: _Optional[int] = ..., commit_step: _Optional[int] = ..., yielded: _Optional[int] = ..., script_ended: _Optional[bool] = ..., hot: _Optional[bool] = ...) -> None: ...

class CheckpointWritten(_message.Message):
    __slots__ = ("step", "path", "error", "seconds")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    error: str
    seconds: float
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ..., error: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class HostTrouble(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    text: str
    def __init__(self, kind: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class EdgeChanged(_message.Message):
    __slots__ = ("generation", "holder", "pids", "lost")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    generation: int
    holder: str
    pids: _containers.RepeatedScalarFieldContainer[int]
    lost: str
    def __init__(self, generation: _Optional[int] = ..., holder: _Optional[str] = ..., pids: _Optional[_Iterable[int]] = ..., lost: _Optional[str] = ...) -> None: ...

class JobSignalled(_message.Message):
    __slots__ = ("signal",)
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    signal: int
    def __init__(self, signal: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("config_json", "generation", "term", "resumed", "heard", "conversation")
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    config_json: str
    generation: int
    term: int
    resumed: bool
    heard: int
    conversation: int
    def __init__(self, config_json: _Optional[str] = ..., generation: _Optional[int] = ..., term: _Optional[int] = ..., resumed: _Optional[bool] = ..., heard: _Optional[int] = ..., conversation: _Optional[int] = ...) -> None: ...

class OpenStore(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class StartRanks(_message.Message):
    __slots__ = ("generation", "world_size", "placements", "store_host", "store_port", "master_node_count", "restart_count")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    MASTER_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    world_size: int
    placements: _containers.RepeatedCompositeFieldContainer[_common_pb2.Placement]
    store_host: str
    store_port: int
    master_node_count: int
    restart_count: int
    def __init__(self, generation: _Optional[int] = ..., world_size: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[_common_pb2.Placement, _Mapping]]] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., master_node_count: _Optional[int] = ..., restart_count: _Optional[int] = ...) -> None: ...

class WarmUp(_message.Message):
    __slots__ = ("standins",)
    STANDINS_FIELD_NUMBER: _ClassVar[int]
    standins: int
    def __init__(self, standins: _Optional[int] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("generation", "world_size", "placements", "hint_step", "master_node_count", "restart_count", "store_host", "store_port", "hot")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    HINT_STEP_FIELD_NUMBER: _ClassVar[int]
    MASTER_NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    world_size: int
    placements: _containers.RepeatedCompositeFieldContainer[_common_pb2.Placement]
    hint_step: int
    master_node_count: int
    restart_count: int
    store_host: str
    store_port: int
    hot: bool
    def __init__(self, generation: _Optional[int] = ..., world_size: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[_common_pb2.Placement, _Mapping]]] = ..., hint_step: _Optional[int] = ..., master_node_count: _Optional[int] = ..., restart_count: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., hot: _Optional[bool] = ...) -> None: ...

class KillRanks(_message.Message):
    __slots__ = ("generation", "ranks", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    def __init__(self, generation: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ...) -> None: ...

class Inject(_message.Message):
    __slots__ = ("injection_id", "kind", "target", "step")
    INJECTION_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    injection_id: int
    kind: str
    target: int
    step: int
    def __init__(self, injection_id: _Optional[int] = ..., kind: _Optional[str] = ..., target: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class InjectionAck(_message.Message):
    __slots__ = ("injection_id",)
    INJECTION_ID_FIELD_NUMBER: _ClassVar[int]
    injection_id: int
    def __init__(self, injection_id: _Optional[int] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason", "grace_s", "signal_number", "exit_code")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    grace_s: float
    signal_number: int
    exit_code: int
    def __init__(self, reason: _Optional[str] = ..., grace_s: _Optional[float] = ..., signal_number: _Optional[int] = ..., exit_code: _Optional[int] = ...) -> None: ...

class Route(_message.Message):
    __slots__ = ("relays", "through")
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    relays: bool
    through: str
    def __init__(self, relays: _Optional[bool] = ..., through: _Optional[str] = ...) -> None: ...

class RanksSaid(_message.Message):
    __slots__ = ("prepared", "reformed", "restored", "resumed")
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    REFORMED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    prepared: _containers.RepeatedCompositeFieldContainer[_common_pb2.RankPrepared]
    reformed: _containers.RepeatedCompositeFieldContainer[_common_pb2.RankReformed]
    restored: _containers.RepeatedCompositeFieldContainer[_common_pb2.RankRestored]
    resumed: _containers.RepeatedCompositeFieldContainer[_common_pb2.RankResumed]
    def __init__(self, prepared: _Optional[_Iterable[_Union[_common_pb2.RankPrepared, _Mapping]]] = ..., reformed: _Optional[_Iterable[_Union[_common_pb2.RankReformed, _Mapping]]] = ..., restored: _Optional[_Iterable[_Union[_common_pb2.RankRestored, _Mapping]]] = ..., resumed: _Optional[_Iterable[_Union[_common_pb2.RankResumed, _Mapping]]] = ...) -> None: ...

class FromGroup(_message.Message):
    __slots__ = ("node_id", "door", "said", "living", "ages_ms", "steps")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    LIVING_FIELD_NUMBER: _ClassVar[int]
    AGES_MS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    door: str
    said: _containers.RepeatedCompositeFieldContainer[Said]
    living: _containers.RepeatedScalarFieldContainer[int]
    ages_ms: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_id: _Optional[str] = ..., door: _Optional[str] = ..., said: _Optional[_Iterable[_Union[Said, _Mapping]]] = ..., living: _Optional[_Iterable[int]] = ..., ages_ms: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[int]] = ...) -> None: ...

class Said(_message.Message):
    __slots__ = ("member", "message", "closed")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    member: int
    message: bytes
    closed: bool
    def __init__(self, member: _Optional[int] = ..., message: _Optional[bytes] = ..., closed: _Optional[bool] = ...) -> None: ...

class ToGroup(_message.Message):
    __slots__ = ("told",)
    TOLD_FIELD_NUMBER: _ClassVar[int]
    told: _containers.RepeatedCompositeFieldContainer[Told]
    def __init__(self, told: _Optional[_Iterable[_Union[Told, _Mapping]]] = ...) -> None: ...

class Told(_message.Message):
    __slots__ = ("members", "order", "numbers", "heard", "closed")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[int]
    order: bytes
    numbers: _containers.RepeatedScalarFieldContainer[int]
    heard: _containers.RepeatedScalarFieldContainer[int]
    closed: bool
    def __init__(self, members: _Optional[_Iterable[int]] = ..., order: _Optional[bytes] = ..., numbers: _Optional[_Iterable[int]] = ..., heard: _Optional[_Iterable[int]] = ..., closed: _Optional[bool] = ...) -> None: ...
