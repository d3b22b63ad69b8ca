from deadpool.proto.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RankMessage(_message.Message):
    __slots__ = ("register", "reserve", "launch_failed", "rank_joined", "rank_broken", "rank_prepared", "rank_reformed", "rank_restored", "rank_failed", "rank_resumed", "rank_finished", "protection_changed", "state_differs", "rank_raised", "drill_ready", "rank_reopened")
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FAILED_FIELD_NUMBER: _ClassVar[int]
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
    RANK_RAISED_FIELD_NUMBER: _ClassVar[int]
    DRILL_READY_FIELD_NUMBER: _ClassVar[int]
    RANK_REOPENED_FIELD_NUMBER: _ClassVar[int]
    register: Register
    reserve: Reserve
    launch_failed: _common_pb2.LaunchFailed
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
    rank_raised: _common_pb2.RankRaised
    drill_ready: _common_pb2.DrillReady
    rank_reopened: _common_pb2.RankReopened
    def __init__(self, register: _Optional[_Union[Register, _Mapping]] = ..., reserve: _Optional[_Union[Reserve, _Mapping]] = ..., launch_failed: _Optional[_Union[_common_pb2.LaunchFailed, _Mapping]] = ..., rank_joined: _Optional[_Union[_common_pb2.RankJoined, _Mapping]] = ..., rank_broken: _Optional[_Union[_common_pb2.RankBroken, _Mapping]] = ..., rank_prepared: _Optional[_Union[_common_pb2.RankPrepared, _Mapping]] = ..., rank_reformed: _Optional[_Union[_common_pb2.RankReformed, _Mapping]] = ..., rank_restored: _Optional[_Union[_common_pb2.RankRestored, _Mapping]] = ..., rank_failed: _Optional[_Union[_common_pb2.RankFailed, _Mapping]] = ..., rank_resumed: _Optional[_Union[_common_pb2.RankResumed, _Mapping]] = ..., rank_finished: _Optional[_Union[_common_pb2.RankFinished, _Mapping]] = ..., protection_changed: _Optional[_Union[_common_pb2.ProtectionChanged, _Mapping]] = ..., state_differs: _Optional[_Union[_common_pb2.StateDiffers, _Mapping]] = ..., rank_raised: _Optional[_Union[_common_pb2.RankRaised, _Mapping]] = ..., drill_ready: _Optional[_Union[_common_pb2.DrillReady, _Mapping]] = ..., rank_reopened: _Optional[_Union[_common_pb2.RankReopened, _Mapping]] = ...) -> None: ...

class RankOrder(_message.Message):
    __slots__ = ("role", "reserved", "quiesce", "reform", "release", "inject_failure", "write_checkpoint", "drill_over", "begin_loop")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    QUIESCE_FIELD_NUMBER: _ClassVar[int]
    REFORM_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    INJECT_FAILURE_FIELD_NUMBER: _ClassVar[int]
    WRITE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DRILL_OVER_FIELD_NUMBER: _ClassVar[int]
    BEGIN_LOOP_FIELD_NUMBER: _ClassVar[int]
    role: Role
    reserved: Reserved
    quiesce: _common_pb2.Quiesce
    reform: _common_pb2.Reform
    release: _common_pb2.Release
    inject_failure: InjectFailure
    write_checkpoint: _common_pb2.WriteCheckpoint
    drill_over: _common_pb2.DrillOver
    begin_loop: _common_pb2.BeginLoop
    def __init__(self, role: _Optional[_Union[Role, _Mapping]] = ..., reserved: _Optional[_Union[Reserved, _Mapping]] = ..., quiesce: _Optional[_Union[_common_pb2.Quiesce, _Mapping]] = ..., reform: _Optional[_Union[_common_pb2.Reform, _Mapping]] = ..., release: _Optional[_Union[_common_pb2.Release, _Mapping]] = ..., inject_failure: _Optional[_Union[InjectFailure, _Mapping]] = ..., write_checkpoint: _Optional[_Union[_common_pb2.WriteCheckpoint, _Mapping]] = ..., drill_over: _Optional[_Union[_common_pb2.DrillOver, _Mapping]] = ..., begin_loop: _Optional[_Union[_common_pb2.BeginLoop, _Mapping]] = ...) -> None: ...

class Register(_message.Message):
    __slots__ = ("pid", "version")
    PID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    pid: int
    version: _common_pb2.Version
    def __init__(self, pid: _Optional[int] = ..., version: _Optional[_Union[_common_pb2.Version, _Mapping]] = ...) -> None: ...

class Reserve(_message.Message):
    __slots__ = ("rank", "snapshot_bytes", "replica_bytes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_BYTES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    snapshot_bytes: int
    replica_bytes: int
    def __init__(self, rank: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., replica_bytes: _Optional[int] = ...) -> None: ...

class Reserved(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...

class Role(_message.Message):
    __slots__ = ("generation", "rank", "local_rank", "world_size", "muted", "store_host", "store_port", "hint_step", "placement", "environment", "hot")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MUTED_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    HINT_STEP_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    local_rank: int
    world_size: int
    muted: bool
    store_host: str
    store_port: int
    hint_step: int
    placement: _common_pb2.Placement
    environment: _containers.ScalarMap[str, str]
    hot: bool
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., muted: _Optional[bool] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., hint_step: _Optional[int] = ..., placement: _Optional[_Union[_common_pb2.Placement, _Mapping]] = ..., environment: _Optional[_Mapping[str, str]] = ..., hot: _Optional[bool] = ...) -> None: ...

class InjectFailure(_message.Message):
    __slots__ = ("kind",)
    KIND_FIELD_NUMBER: _ClassVar[int]
    kind: str
    def __init__(self, kind: _Optional[str] = ...) -> None: ...
