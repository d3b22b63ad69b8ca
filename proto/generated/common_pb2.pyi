from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Version(_message.Message):
    __slots__ = ("package", "protocol")
    PACKAGE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    package: str
    protocol: int
    def __init__(self, package: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("node_id", "host", "port")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    host: str
    port: int
    def __init__(self, node_id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("rank", "local_rank", "node_id", "node_rank", "holders", "domain")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    node_id: str
    node_rank: int
    holders: _containers.RepeatedCompositeFieldContainer[Endpoint]
    domain: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., node_id: _Optional[str] = ..., node_rank: _Optional[int] = ..., holders: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., domain: _Optional[str] = ...) -> None: ...

class Slot(_message.Message):
    __slots__ = ("kind", "rank", "generation", "step", "peer_sets", "unique")
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PEER_SETS_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    rank: int
    generation: int
    step: int
    peer_sets: _containers.RepeatedCompositeFieldContainer[RankSet]
    unique: bool
    def __init__(self, kind: _Optional[str] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., peer_sets: _Optional[_Iterable[_Union[RankSet, _Mapping]]] = ..., unique: _Optional[bool] = ...) -> None: ...

class RankSet(_message.Message):
    __slots__ = ("ranks", "digest")
    RANKS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    digest: int
    def __init__(self, ranks: _Optional[_Iterable[int]] = ..., digest: _Optional[int] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("rank", "kind", "slot_generation", "endpoint", "peers")
    RANK_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SLOT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    rank: int
    kind: str
    slot_generation: int
    endpoint: Endpoint
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, rank: _Optional[int] = ..., kind: _Optional[str] = ..., slot_generation: _Optional[int] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("rank", "slot_generation", "endpoint", "kind")
    RANK_FIELD_NUMBER: _ClassVar[int]
    SLOT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    rank: int
    slot_generation: int
    endpoint: Endpoint
    kind: str
    def __init__(self, rank: _Optional[int] = ..., slot_generation: _Optional[int] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., kind: _Optional[str] = ...) -> None: ...

class LaunchFailed(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RankJoined(_message.Message):
    __slots__ = ("generation", "rank", "pid", "hot")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    pid: int
    hot: bool
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., pid: _Optional[int] = ..., hot: _Optional[bool] = ...) -> None: ...

class RankBroken(_message.Message):
    __slots__ = ("generation", "rank", "error", "needs")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    error: str
    needs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., error: _Optional[str] = ..., needs: _Optional[_Iterable[int]] = ...) -> None: ...

class RankRaised(_message.Message):
    __slots__ = ("generation", "rank", "error")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    error: str
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class RankPrepared(_message.Message):
    __slots__ = ("generation", "rank", "live_generation", "live_step", "commit_step", "yielded", "outside", "earliest", "latest", "hot", "device_bytes", "repeatable")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LIVE_GENERATION_FIELD_NUMBER: _ClassVar[int]
    LIVE_STEP_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    YIELDED_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    HOT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPEATABLE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    live_generation: int
    live_step: int
    commit_step: int
    yielded: int
    outside: bool
    earliest: int
    latest: int
    hot: bool
    device_bytes: int
    repeatable: bool
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., live_generation: _Optional[int] = ..., live_step: _Optional[int] = ..., commit_step: _Optional[int] = ..., yielded: _Optional[int] = ..., outside: _Optional[bool] = ..., earliest: _Optional[int] = ..., latest: _Optional[int] = ..., hot: _Optional[bool] = ..., device_bytes: _Optional[int] = ..., repeatable: _Optional[bool] = ...) -> None: ...

class RankReformed(_message.Message):
    __slots__ = ("generation", "rank", "groups_kept", "groups_opened")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GROUPS_KEPT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_OPENED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    groups_kept: int
    groups_opened: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., groups_kept: _Optional[int] = ..., groups_opened: _Optional[int] = ...) -> None: ...

class BadCopy(_message.Message):
    __slots__ = ("node_id", "kind", "rank", "generation", "step")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    kind: str
    rank: int
    generation: int
    step: int
    def __init__(self, node_id: _Optional[str] = ..., kind: _Optional[str] = ..., rank: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class CopyConflict(_message.Message):
    __slots__ = ("rank", "generation", "step", "peer", "peer_generation")
    RANK_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PEER_GENERATION_FIELD_NUMBER: _ClassVar[int]
    rank: int
    generation: int
    step: int
    peer: int
    peer_generation: int
    def __init__(self, rank: _Optional[int] = ..., generation: _Optional[int] = ..., step: _Optional[int] = ..., peer: _Optional[int] = ..., peer_generation: _Optional[int] = ...) -> None: ...

class RankRestored(_message.Message):
    __slots__ = ("generation", "rank", "step", "bytes_restored", "bad_copies", "conflicts")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESTORED_FIELD_NUMBER: _ClassVar[int]
    BAD_COPIES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    bytes_restored: int
    bad_copies: _containers.RepeatedCompositeFieldContainer[BadCopy]
    conflicts: _containers.RepeatedCompositeFieldContainer[CopyConflict]
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., bytes_restored: _Optional[int] = ..., bad_copies: _Optional[_Iterable[_Union[BadCopy, _Mapping]]] = ..., conflicts: _Optional[_Iterable[_Union[CopyConflict, _Mapping]]] = ...) -> None: ...

class RankFailed(_message.Message):
    __slots__ = ("generation", "rank", "phase", "error", "bad_copies", "conflicts")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BAD_COPIES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    phase: str
    error: str
    bad_copies: _containers.RepeatedCompositeFieldContainer[BadCopy]
    conflicts: _containers.RepeatedCompositeFieldContainer[CopyConflict]
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., phase: _Optional[str] = ..., error: _Optional[str] = ..., bad_copies: _Optional[_Iterable[_Union[BadCopy, _Mapping]]] = ..., conflicts: _Optional[_Iterable[_Union[CopyConflict, _Mapping]]] = ...) -> None: ...

class RankResumed(_message.Message):
    __slots__ = ("generation", "rank", "step", "at_ns")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    at_ns: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., at_ns: _Optional[int] = ...) -> None: ...

class RankFinished(_message.Message):
    __slots__ = ("generation", "rank", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Quiesce(_message.Message):
    __slots__ = ("generation", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Reform(_message.Message):
    __slots__ = ("generation", "resume_step", "store_host", "store_port", "placements", "sources", "commit_step", "yielded", "excluded")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RESUME_STEP_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_STEP_FIELD_NUMBER: _ClassVar[int]
    YIELDED_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    resume_step: int
    store_host: str
    store_port: int
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    commit_step: int
    yielded: int
    excluded: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., resume_step: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., commit_step: _Optional[int] = ..., yielded: _Optional[int] = ..., excluded: _Optional[_Iterable[int]] = ...) -> None: ...

class RankReopened(_message.Message):
    __slots__ = ("generation", "rank", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class BeginLoop(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class WriteCheckpoint(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class ProtectionChanged(_message.Message):
    __slots__ = ("generation", "rank", "step", "reason")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    reason: str
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DrillReady(_message.Message):
    __slots__ = ("generation", "rank", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class DrillOver(_message.Message):
    __slots__ = ("generation", "step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class StateDiffers(_message.Message):
    __slots__ = ("generation", "rank", "step", "ranks", "item", "repair", "good_step")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    GOOD_STEP_FIELD_NUMBER: _ClassVar[int]
    generation: int
    rank: int
    step: int
    ranks: _containers.RepeatedScalarFieldContainer[int]
    item: str
    repair: str
    good_step: int
    def __init__(self, generation: _Optional[int] = ..., rank: _Optional[int] = ..., step: _Optional[int] = ..., ranks: _Optional[_Iterable[int]] = ..., item: _Optional[str] = ..., repair: _Optional[str] = ..., good_step: _Optional[int] = ...) -> None: ...
