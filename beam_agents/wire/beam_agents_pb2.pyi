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
    __slots__ = ["activations", "clock_ms", "compacted_at", "expire_failing_since_ms", "expire_failures", "expires_at_ms", "memory_bytes", "memory_entries", "replay_seq", "seq", "settled", "state_schema_version", "suspensions", "traceparent"]
    ACTIVATIONS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_FAILING_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_FAILURES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REPLAY_SEQ_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUSPENSIONS_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    activations: int
    clock_ms: int
    compacted_at: int
    expire_failing_since_ms: int
    expire_failures: int
    expires_at_ms: int
    memory_bytes: int
    memory_entries: int
    replay_seq: int
    seq: int
    settled: _containers.RepeatedCompositeFieldContainer[SettledIntent]
    state_schema_version: int
    suspensions: _containers.RepeatedCompositeFieldContainer[Suspension]
    traceparent: str
    def __init__(self, state_schema_version: _Optional[int] = ..., seq: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., clock_ms: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., memory_entries: _Optional[int] = ..., replay_seq: _Optional[int] = ..., suspensions: _Optional[_Iterable[_Union[Suspension, _Mapping]]] = ..., settled: _Optional[_Iterable[_Union[SettledIntent, _Mapping]]] = ..., traceparent: _Optional[str] = ..., activations: _Optional[int] = ..., compacted_at: _Optional[int] = ..., expire_failures: _Optional[int] = ..., expire_failing_since_ms: _Optional[int] = ...) -> None: ...

class LongTermRecord(_message.Message):
    __slots__ = ["record_schema_version", "seq", "updated_at_ms", "value"]
    RECORD_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    record_schema_version: int
    seq: int
    updated_at_ms: int
    value: bytes
    def __init__(self, record_schema_version: _Optional[int] = ..., value: _Optional[bytes] = ..., seq: _Optional[int] = ..., updated_at_ms: _Optional[int] = ...) -> None: ...

class MemoryBlob(_message.Message):
    __slots__ = ["blob_bytes", "entries", "extent_bytes", "extent_group_bytes", "extents", "head_bytes", "head_checksum", "page_bytes", "page_checksums", "page_group_bytes", "pages", "size_bytes", "state_schema_version", "tick"]
    BLOB_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    EXTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTENT_GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEAD_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    PAGE_GROUP_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    TICK_FIELD_NUMBER: _ClassVar[int]
    blob_bytes: int
    entries: int
    extent_bytes: _containers.RepeatedScalarFieldContainer[int]
    extent_group_bytes: _containers.RepeatedScalarFieldContainer[int]
    extents: _containers.RepeatedCompositeFieldContainer[MemoryExtent]
    head_bytes: int
    head_checksum: int
    page_bytes: _containers.RepeatedScalarFieldContainer[int]
    page_checksums: _containers.RepeatedScalarFieldContainer[int]
    page_group_bytes: _containers.RepeatedScalarFieldContainer[int]
    pages: _containers.RepeatedCompositeFieldContainer[MemoryPage]
    size_bytes: int
    state_schema_version: int
    tick: int
    def __init__(self, state_schema_version: _Optional[int] = ..., head_bytes: _Optional[int] = ..., blob_bytes: _Optional[int] = ..., head_checksum: _Optional[int] = ..., tick: _Optional[int] = ..., size_bytes: _Optional[int] = ..., entries: _Optional[int] = ..., page_bytes: _Optional[_Iterable[int]] = ..., page_checksums: _Optional[_Iterable[int]] = ..., extent_bytes: _Optional[_Iterable[int]] = ..., page_group_bytes: _Optional[_Iterable[int]] = ..., extent_group_bytes: _Optional[_Iterable[int]] = ..., pages: _Optional[_Iterable[_Union[MemoryPage, _Mapping]]] = ..., extents: _Optional[_Iterable[_Union[MemoryExtent, _Mapping]]] = ...) -> None: ...

class MemoryExtended(_message.Message):
    __slots__ = ["accessed", "chunk_bytes", "chunk_items", "content_bytes", "inserted", "items", "ring", "stored_bytes"]
    ACCESSED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_ITEMS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RING_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    accessed: int
    chunk_bytes: _containers.RepeatedScalarFieldContainer[int]
    chunk_items: _containers.RepeatedScalarFieldContainer[int]
    content_bytes: int
    inserted: int
    items: int
    ring: bool
    stored_bytes: int
    def __init__(self, accessed: _Optional[int] = ..., inserted: _Optional[int] = ..., ring: bool = ..., content_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., items: _Optional[int] = ..., chunk_bytes: _Optional[_Iterable[int]] = ..., chunk_items: _Optional[_Iterable[int]] = ...) -> None: ...

class MemoryExtent(_message.Message):
    __slots__ = ["items", "value"]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[bytes]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ..., items: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MemoryPage(_message.Message):
    __slots__ = ["extended", "scalars"]
    class ExtendedEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MemoryExtended
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MemoryExtended, _Mapping]] = ...) -> None: ...
    class ScalarsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MemoryScalar
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MemoryScalar, _Mapping]] = ...) -> None: ...
    EXTENDED_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    extended: _containers.MessageMap[str, MemoryExtended]
    scalars: _containers.MessageMap[str, MemoryScalar]
    def __init__(self, scalars: _Optional[_Mapping[str, MemoryScalar]] = ..., extended: _Optional[_Mapping[str, MemoryExtended]] = ...) -> None: ...

class MemoryScalar(_message.Message):
    __slots__ = ["accessed", "inserted", "value"]
    ACCESSED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    accessed: int
    inserted: int
    value: bytes
    def __init__(self, accessed: _Optional[int] = ..., inserted: _Optional[int] = ..., value: _Optional[bytes] = ...) -> None: ...

class ModelResponse(_message.Message):
    __slots__ = ["body", "completion_tokens", "prompt_tokens"]
    BODY_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    completion_tokens: int
    prompt_tokens: int
    def __init__(self, body: _Optional[bytes] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

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
