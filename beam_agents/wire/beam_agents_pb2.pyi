from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ActivationError(_message.Message):
    __slots__ = ["detail", "entity_key", "event_id", "event_time_ms", "reason", "seq"]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    detail: str
    entity_key: bytes
    event_id: str
    event_time_ms: int
    reason: str
    seq: int
    def __init__(self, entity_key: _Optional[bytes] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ..., event_time_ms: _Optional[int] = ..., event_id: _Optional[str] = ..., seq: _Optional[int] = ...) -> None: ...

class AgentEnvelope(_message.Message):
    __slots__ = ["entity_key", "event", "event_id", "event_time_ms", "tool_result", "traceparent"]
    ENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    entity_key: bytes
    event: bytes
    event_id: str
    event_time_ms: int
    tool_result: ToolResult
    traceparent: str
    def __init__(self, entity_key: _Optional[bytes] = ..., event_time_ms: _Optional[int] = ..., event_id: _Optional[str] = ..., traceparent: _Optional[str] = ..., event: _Optional[bytes] = ..., tool_result: _Optional[_Union[ToolResult, _Mapping]] = ...) -> None: ...

class CachedResponse(_message.Message):
    __slots__ = ["request_digest", "response", "response_digest", "seq", "stored_at_ms"]
    REQUEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STORED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    request_digest: bytes
    response: bytes
    response_digest: bytes
    seq: int
    stored_at_ms: int
    def __init__(self, request_digest: _Optional[bytes] = ..., seq: _Optional[int] = ..., stored_at_ms: _Optional[int] = ..., response: _Optional[bytes] = ..., response_digest: _Optional[bytes] = ...) -> None: ...

class ControlState(_message.Message):
    __slots__ = ["clock_ms", "expires_at_ms", "memory_bytes", "memory_entries", "replay_seq", "seq", "settled", "state_schema_version", "suspensions", "traceparent"]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_SEQ_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUSPENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    clock_ms: int
    expires_at_ms: int
    memory_bytes: int
    memory_entries: int
    replay_seq: int
    seq: int
    settled: _containers.RepeatedCompositeFieldContainer[SettledIntent]
    state_schema_version: int
    suspensions: _containers.RepeatedCompositeFieldContainer[Suspension]
    traceparent: str
    def __init__(self, state_schema_version: _Optional[int] = ..., seq: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., clock_ms: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_entries: _Optional[int] = ..., replay_seq: _Optional[int] = ..., suspensions: _Optional[_Iterable[_Union[Suspension, _Mapping]]] = ..., settled: _Optional[_Iterable[_Union[SettledIntent, _Mapping]]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ReplayState(_message.Message):
    __slots__ = ["entries", "state_schema_version"]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[CachedResponse]
    state_schema_version: int
    def __init__(self, state_schema_version: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[CachedResponse, _Mapping]]] = ...) -> None: ...

class SettledIntent(_message.Message):
    __slots__ = ["answered", "intent_id"]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    answered: bool
    intent_id: str
    def __init__(self, intent_id: _Optional[str] = ..., answered: bool = ...) -> None: ...

class Suspension(_message.Message):
    __slots__ = ["results", "seq", "snapshot", "traceparent", "waiting_for"]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[ToolResult]
    seq: int
    snapshot: bytes
    traceparent: str
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, seq: _Optional[int] = ..., snapshot: _Optional[bytes] = ..., waiting_for: _Optional[_Iterable[str]] = ..., results: _Optional[_Iterable[_Union[ToolResult, _Mapping]]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ToolIntent(_message.Message):
    __slots__ = ["arguments", "entity_key", "event_time_ms", "intent_id", "seq", "tool", "traceparent"]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_MS_FIELD_NUMBER: _ClassVar[int]
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    arguments: bytes
    entity_key: bytes
    event_time_ms: int
    intent_id: str
    seq: int
    tool: str
    traceparent: str
    def __init__(self, intent_id: _Optional[str] = ..., entity_key: _Optional[bytes] = ..., tool: _Optional[str] = ..., arguments: _Optional[bytes] = ..., seq: _Optional[int] = ..., event_time_ms: _Optional[int] = ..., traceparent: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ["content", "intent_id", "is_error"]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    INTENT_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    intent_id: str
    is_error: bool
    def __init__(self, intent_id: _Optional[str] = ..., content: _Optional[bytes] = ..., is_error: bool = ...) -> None: ...
