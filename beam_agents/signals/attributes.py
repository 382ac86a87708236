"""Keys of span attributes that are ours; those of OpenTelemetry's conventions are in ``conventions``."""

from __future__ import annotations

from typing import Final

SEQ: Final = "beam_agents.seq"
ATTEMPT: Final = "beam_agents.attempt"
OUTCOME: Final = "beam_agents.outcome"
REASON: Final = "beam_agents.reason"
ENTITY: Final = "beam_agents.entity"
PIPELINE: Final = "beam_agents.pipeline"
CACHE_HIT: Final = "beam_agents.cache_hit"
TRIGGER: Final = "beam_agents.trigger"

MEMORY_SIZE_BYTES: Final = "beam_agents.memory.size_bytes"
MEMORY_ENTRIES: Final = "beam_agents.memory.entries"
MEMORY_SIZE_BEFORE_BYTES: Final = "beam_agents.memory.size_before_bytes"
MEMORY_SIZE_AFTER_BYTES: Final = "beam_agents.memory.size_after_bytes"
EVICTIONS: Final = "beam_agents.memory.evictions"
EVICTED_BYTES: Final = "beam_agents.memory.evicted_bytes"
SOURCE_BYTES: Final = "beam_agents.summary.source_bytes"
SUMMARY_BYTES: Final = "beam_agents.summary.bytes"

ROWS: Final = "beam_agents.longterm.rows"
ROWS_BYTES: Final = "beam_agents.longterm.bytes"
ROWS_OVERLAID: Final = "beam_agents.longterm.rows_overlaid"
ROWS_APPLIED: Final = "beam_agents.longterm.rows_applied"
ROWS_STALE: Final = "beam_agents.longterm.rows_stale"
RETRIES: Final = "beam_agents.longterm.retries"
KEY_LENGTH: Final = "beam_agents.longterm.key_length"
VALUE_BYTES: Final = "beam_agents.longterm.value_bytes"

WEDGED_ATTEMPT: Final = "beam_agents.expire.wedged_attempt"
AGE_SECONDS: Final = "beam_agents.expire.age_seconds"
