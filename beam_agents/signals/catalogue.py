"""Every metric, span and log event, as data. All other forms of a name are derived from here.

A constant is called as its metric is in Prometheus, without ``_total``, in upper case.
"""

from __future__ import annotations

from typing import Final

from beam_agents.signals import attributes as ours
from beam_agents.signals import conventions as otel
from beam_agents.signals.types import (
    BeamKind,
    BeamMetric,
    CacheResult,
    CallOutcome,
    CompactionTrigger,
    Direction,
    DropReason,
    Flushed,
    Label,
    LogEvent,
    Metric,
    MetricKind,
    Outcome,
    Phase,
    Reason,
    SpanKind,
    SpanName,
    StoreOperation,
    SummaryOutcome,
    UpsertResult,
)

# The namespace of every Beam metric.
BEAM_NAMESPACE: Final = "beam_agents.runtime"

# At most this many values of error_type per process; what comes after is OTHER_ERROR_TYPE.
MAX_ERROR_TYPES: Final = 50
OTHER_ERROR_TYPE: Final = "other"

_DURATION_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 10.0, 30.0, 60.0),
)
# Timers may be late by hours: their lateness follows the watermark, not the machine.
_LATENESS_BUCKETS = (
    *(0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0),
    *(3600.0, 10800.0, 21600.0, 43200.0, 86400.0),
)
# Up to the hard cap of working memory, with the soft cap as a bound of its own.
_MEMORY_BUCKETS = (
    *(64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 131072.0),
    *(262144.0, 524288.0, 786432.0, 917504.0, 1048576.0),
)
_FLUSH_BUCKETS = tuple(64.0 * 4**power for power in range(10))
_COUNT_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)

_MILLISECONDS = 1_000


def _counter(name: str, **where: tuple[str, ...]) -> BeamMetric:
    return BeamMetric(name, BeamKind.COUNTER, where=tuple(where.items()))


def _distribution(name: str, scale: int = 1) -> BeamMetric:
    return BeamMetric(name, BeamKind.DISTRIBUTION, scale)


# Activations

ACTIVATIONS: Final = Metric(
    "activations_total",
    MetricKind.COUNTER,
    "1",
    "Activations that ended, each attempt counted.",
    labels=("outcome",),
    values=(("outcome", Outcome),),
    beam=(
        _counter("activations", outcome=(Outcome.COMPLETE, Outcome.SUSPEND)),
        _counter("suspensions", outcome=(Outcome.SUSPEND,)),
    ),
)
ACTIVATION_ERRORS: Final = Metric(
    "activation_errors_total",
    MetricKind.COUNTER,
    "1",
    "Records on the errors output, orphaned results excepted.",
    labels=("reason",),
    values=(("reason", Reason),),
    beam=(_counter("agent_errors"),),
)
ORPHANED_RESULTS: Final = Metric(
    "orphaned_results_total",
    MetricKind.COUNTER,
    "1",
    "Tool results that no suspension waited for, each a record on the errors output.",
    beam=(_counter("orphaned_results"),),
)
ACTIVATION_DURATION_SECONDS: Final = Metric(
    "activation_duration_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "Wall time of an activation, failed ones included.",
    labels=("outcome",),
    values=(("outcome", Outcome),),
    beam=(_distribution("activation_ms", _MILLISECONDS),),
    buckets=_DURATION_BUCKETS,
)
RUNTIME_OVERHEAD_SECONDS: Final = Metric(
    "runtime_overhead_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "Wall time of an activation less the time in models, tools and stores.",
    beam=(_distribution("overhead_ms", _MILLISECONDS),),
    buckets=_DURATION_BUCKETS,
)
ACTIVATIONS_IN_FLIGHT: Final = Metric(
    "activations_in_flight",
    MetricKind.GAUGE,
    "1",
    "Activations that now run in this process.",
)
OLDEST_ACTIVATION_AGE_SECONDS: Final = Metric(
    "oldest_activation_age_seconds",
    MetricKind.GAUGE,
    "seconds",
    "Age of the oldest activation that now runs in this process; 0 when none does.",
)
EVENT_LOOP_STALLS: Final = Metric(
    "event_loop_stalls_total",
    MetricKind.COUNTER,
    "1",
    "Times that a thread waited too long for the process's event loop because something blocked it.",
    beam=(_counter("event_loop_stalls"),),
)

# Models and tools

MODEL_CALLS: Final = Metric(
    "model_calls_total",
    MetricKind.COUNTER,
    "1",
    "Model calls that reached the provider.",
    labels=("model", "outcome"),
    values=(("outcome", CallOutcome),),
    beam=(_counter("llm_calls"),),
)
REPLAY_CACHE_REQUESTS: Final = Metric(
    "replay_cache_requests_total",
    MetricKind.COUNTER,
    "1",
    "Look-ups in the replay cache.",
    labels=("result",),
    values=(("result", CacheResult),),
    beam=(
        _counter("replay_cache_hits", result=(CacheResult.HIT,)),
        _counter("replay_cache_misses", result=(CacheResult.MISS,)),
    ),
)
REPLAY_CACHE_DRIFTS: Final = Metric(
    "replay_cache_drifts_total",
    MetricKind.COUNTER,
    "1",
    "Repeated model calls that were answered differently than the digest that the replay cache kept.",
    beam=(_counter("replay_cache_drifts"),),
)
MODEL_CALL_DURATION_SECONDS: Final = Metric(
    "model_call_duration_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "Wall time of a model call that reached the provider.",
    labels=("model",),
    beam=(_distribution("llm_ms", _MILLISECONDS),),
    buckets=_DURATION_BUCKETS,
    convention=otel.GEN_AI_CLIENT_OPERATION_DURATION,
)
TOKENS: Final = Metric(
    "tokens_total",
    MetricKind.COUNTER,
    "1",
    "Tokens that models read and wrote, as billed.",
    labels=("model", "direction"),
    values=(("direction", Direction),),
    beam=(
        _counter("prompt_tokens", direction=(Direction.PROMPT,)),
        _counter("completion_tokens", direction=(Direction.COMPLETION,)),
    ),
    convention=otel.GEN_AI_CLIENT_TOKEN_USAGE,
)
TOOL_CALLS: Final = Metric(
    "tool_calls_total",
    MetricKind.COUNTER,
    "1",
    "Read-only tools that ran inside an activation.",
    labels=("tool",),
    beam=(_counter("tool_calls"),),
)
INTENTS_EMITTED: Final = Metric(
    "intents_emitted_total",
    MetricKind.COUNTER,
    "1",
    "Tool intents that committed activations emitted.",
    labels=("tool",),
    beam=(_counter("intents_emitted"),),
)

# Working memory

MEMORY_SIZE_BYTES: Final = Metric(
    "memory_size_bytes",
    MetricKind.HISTOGRAM,
    "bytes",
    "Size of a key's working memory as an activation committed it.",
    beam=(_distribution("memory_bytes"),),
    buckets=_MEMORY_BUCKETS,
)
MEMORY_ENTRIES: Final = Metric(
    "memory_entries",
    MetricKind.HISTOGRAM,
    "1",
    "Entries of a key's working memory as an activation committed it.",
    beam=(_distribution("memory_entries"),),
    buckets=_COUNT_BUCKETS,
)
MEMORY_SOFT_CAP_CROSSINGS: Final = Metric(
    "memory_soft_cap_crossings_total",
    MetricKind.COUNTER,
    "1",
    "Writes that took a key's working memory over the soft cap.",
    beam=(_counter("soft_cap_warnings"),),
)
MEMORY_OVERFLOWS: Final = Metric(
    "memory_overflows_total",
    MetricKind.COUNTER,
    "1",
    "Writes that were refused at the hard cap.",
    beam=(_counter("memory_overflows"),),
)
COMPACTION_RUNS: Final = Metric(
    "compaction_runs_total",
    MetricKind.COUNTER,
    "1",
    "Times that the compactor ran.",
    labels=("trigger",),
    values=(("trigger", CompactionTrigger),),
    beam=(_counter("compaction_runs"),),
)
COMPACTION_EVICTIONS: Final = Metric(
    "compaction_evictions_total",
    MetricKind.COUNTER,
    "1",
    "Entries that the compactor evicted.",
    beam=(_counter("compaction_evictions"),),
)
COMPACTION_EVICTED_BYTES: Final = Metric(
    "compaction_evicted_bytes_total",
    MetricKind.COUNTER,
    "bytes",
    "Bytes that the compactor evicted.",
    beam=(_counter("compaction_evicted_bytes"),),
)
MEMORY_COMPACTION_COOLDOWN_BREACHES: Final = Metric(
    "memory_compaction_cooldown_breaches_total",
    MetricKind.COUNTER,
    "1",
    "Times that a key was compacted again within a few activations: its memory thrashes.",
)
SUMMARIES: Final = Metric(
    "summaries_total",
    MetricKind.COUNTER,
    "1",
    "Attempts to fold old ring items into a summary.",
    labels=("outcome",),
    values=(("outcome", SummaryOutcome),),
    beam=(
        _counter("summaries"),
        _counter("summary_failures", outcome=(SummaryOutcome.ERROR, SummaryOutcome.NOT_SMALLER)),
    ),
)
SUMMARY_BYTES_RECLAIMED: Final = Metric(
    "summary_bytes_reclaimed_total",
    MetricKind.COUNTER,
    "bytes",
    "Bytes of working memory that summaries saved.",
    beam=(_counter("summary_bytes_reclaimed"),),
)

# The long-term tier

LONGTERM_STAGED: Final = Metric(
    "longterm_staged_total",
    MetricKind.COUNTER,
    "1",
    "Rows that activations staged for the long-term tier, and that expiries wrote to it.",
    labels=("backend",),
    beam=(_counter("longterm_staged"),),
)
LONGTERM_UPSERTS: Final = Metric(
    "longterm_upserts_total",
    MetricKind.COUNTER,
    "1",
    "Rows flushed to the long-term tier.",
    labels=("backend", "result"),
    values=(("result", UpsertResult),),
    beam=(
        _counter("longterm_upserts", result=(UpsertResult.APPLIED,)),
        _counter("longterm_stale_upserts", result=(UpsertResult.STALE,)),
    ),
)
LONGTERM_FLUSH_FAILURES: Final = Metric(
    "longterm_flush_failures_total",
    MetricKind.COUNTER,
    "1",
    "Flushes to the long-term tier that failed.",
    labels=("backend", "error_type"),
    beam=(_counter("longterm_flush_failures"),),
)
LONGTERM_FLUSH_DURATION_SECONDS: Final = Metric(
    "longterm_flush_duration_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "Wall time of a flush to the long-term tier.",
    labels=("backend", "outcome"),
    values=(("outcome", CallOutcome),),
    # A counter too: not every runner reports distributions.
    beam=(_distribution("longterm_flush_ms", _MILLISECONDS), _counter("longterm_flushes")),
    buckets=_DURATION_BUCKETS,
)
LONGTERM_FLUSH_ROWS: Final = Metric(
    "longterm_flush_rows",
    MetricKind.HISTOGRAM,
    "1",
    "Rows in a flush to the long-term tier.",
    labels=("backend", "outcome"),
    values=(("outcome", CallOutcome),),
    beam=(_distribution("longterm_flush_rows"),),
    buckets=_COUNT_BUCKETS,
)
LONGTERM_FLUSH_BYTES: Final = Metric(
    "longterm_flush_bytes",
    MetricKind.HISTOGRAM,
    "bytes",
    "Bytes in a flush to the long-term tier.",
    labels=("backend", "outcome"),
    values=(("outcome", CallOutcome),),
    beam=(_distribution("longterm_flush_bytes"),),
    buckets=_FLUSH_BUCKETS,
)
STORE_OPERATION_DURATION_SECONDS: Final = Metric(
    "store_operation_duration_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "Wall time of a call to a store, its retries included.",
    labels=("backend", "operation", "outcome"),
    values=(("operation", StoreOperation), ("outcome", CallOutcome)),
    buckets=_DURATION_BUCKETS,
    per_agent=False,
    convention=otel.DB_CLIENT_OPERATION_DURATION,
)
STORE_RETRIES: Final = Metric(
    "store_retries_total",
    MetricKind.COUNTER,
    "1",
    "Calls to a store that were tried again after a transient error.",
    labels=("backend", "operation", "error_type"),
    values=(("operation", StoreOperation),),
    per_agent=False,
)
STORE_UP: Final = Metric(
    "store_up",
    MetricKind.GAUGE,
    "1",
    "1 if the last health probe of, or call to, a store succeeded (whichever is newer), else 0.",
    labels=("backend",),
    per_agent=False,
)
STORE_LAST_SUCCESS_TIMESTAMP_SECONDS: Final = Metric(
    "store_last_success_timestamp_seconds",
    MetricKind.GAUGE,
    "seconds",
    "When a call to a store last succeeded, in seconds since the Unix epoch.",
    labels=("backend",),
    per_agent=False,
)

# Expiry

EXPIRE_FLUSHES: Final = Metric(
    "expire_flushes_total",
    MetricKind.COUNTER,
    "1",
    "Attempts to flush a key's memory as it expired.",
    labels=("backend", "outcome"),
    values=(("outcome", CallOutcome),),
    beam=(
        _counter("expire_flushes"),
        _counter("expire_flush_failures", outcome=(CallOutcome.ERROR, CallOutcome.TIMEOUT)),
    ),
)
EXPIRE_WEDGED_TIMERS: Final = Metric(
    "expire_wedged_timers",
    MetricKind.GAUGE,
    "1",
    "Expiry timers in this process that have failed and not yet succeeded.",
    labels=("backend",),
    beam=(BeamMetric("expire_wedged", BeamKind.GAUGE),),
)
EXPIRE_WEDGED_OLDEST_SECONDS: Final = Metric(
    "expire_wedged_oldest_seconds",
    MetricKind.GAUGE,
    "seconds",
    "Time since the first failure of the expiry timer that has failed for longest; 0 when none has.",
    labels=("backend",),
)
EXPIRE_REARMS: Final = Metric(
    "expire_rearms_total",
    MetricKind.COUNTER,
    "1",
    "Expiry timers that were set again because the flush failed.",
    labels=("backend",),
    beam=(_counter("expire_rearms"),),
)
EXPIRE_WEDGES_LOST_SIGHT: Final = Metric(
    "expire_wedges_lost_sight_total",
    MetricKind.COUNTER,
    "1",
    "Wedged timers that this process has not seen again: another worker may have them.",
    labels=("backend",),
)
TTL_WIPES: Final = Metric(
    "ttl_wipes_total",
    MetricKind.COUNTER,
    "1",
    "Keys whose working memory was reclaimed at expiry.",
    labels=("flushed",),
    values=(("flushed", Flushed),),
    beam=(_counter("ttl_wipes"),),
)
TTL_WIPED_SUSPENSIONS: Final = Metric(
    "ttl_wiped_suspensions_total",
    MetricKind.COUNTER,
    "1",
    "Suspensions that were lost because their key expired.",
    beam=(_counter("ttl_wiped_suspensions"),),
)
TIMERS_EARLY: Final = Metric(
    "timers_early_total",
    MetricKind.COUNTER,
    "1",
    "Expiry timers that fired before their key was due and were set again.",
    beam=(_counter("timers_early"),),
)
TIMER_LATENESS_SECONDS: Final = Metric(
    "timer_lateness_seconds",
    MetricKind.HISTOGRAM,
    "seconds",
    "How long after its key was due an expiry timer fired.",
    buckets=_LATENESS_BUCKETS,
)

# The process

BUNDLES: Final = Metric(
    "bundles_total",
    MetricKind.COUNTER,
    "1",
    "Bundles that this worker began; a bundle has no phase until something in it runs.",
)
BUNDLE_FAILURES: Final = Metric(
    "bundle_failures_total",
    MetricKind.COUNTER,
    "1",
    "Bundles that an exception ended.",
    labels=("phase",),
    values=(("phase", Phase),),
)
TELEMETRY_DROPPED: Final = Metric(
    "telemetry_dropped_total",
    MetricKind.COUNTER,
    "1",
    "Signals that a telemetry plugin lost.",
    labels=("plugin", "reason"),
    per_agent=False,
)
TELEMETRY_INITIALISED: Final = Metric(
    "telemetry_initialised",
    MetricKind.GAUGE,
    "1",
    "1 in each process in which a telemetry plugin runs, 0 where it could not be built.",
    labels=("plugin",),
    per_agent=False,
)
BUILD_INFO: Final = Metric(
    "build_info",
    MetricKind.GAUGE,
    "1",
    "Always 1; its labels tell the versions in use.",
    labels=("version", "beam_version"),
    per_agent=False,
)

METRICS: Final[tuple[Metric, ...]] = (
    ACTIVATIONS,
    ACTIVATION_ERRORS,
    ORPHANED_RESULTS,
    ACTIVATION_DURATION_SECONDS,
    RUNTIME_OVERHEAD_SECONDS,
    ACTIVATIONS_IN_FLIGHT,
    OLDEST_ACTIVATION_AGE_SECONDS,
    EVENT_LOOP_STALLS,
    MODEL_CALLS,
    REPLAY_CACHE_REQUESTS,
    REPLAY_CACHE_DRIFTS,
    MODEL_CALL_DURATION_SECONDS,
    TOKENS,
    TOOL_CALLS,
    INTENTS_EMITTED,
    MEMORY_SIZE_BYTES,
    MEMORY_ENTRIES,
    MEMORY_SOFT_CAP_CROSSINGS,
    MEMORY_OVERFLOWS,
    COMPACTION_RUNS,
    COMPACTION_EVICTIONS,
    COMPACTION_EVICTED_BYTES,
    MEMORY_COMPACTION_COOLDOWN_BREACHES,
    SUMMARIES,
    SUMMARY_BYTES_RECLAIMED,
    LONGTERM_STAGED,
    LONGTERM_UPSERTS,
    LONGTERM_FLUSH_FAILURES,
    LONGTERM_FLUSH_DURATION_SECONDS,
    LONGTERM_FLUSH_ROWS,
    LONGTERM_FLUSH_BYTES,
    STORE_OPERATION_DURATION_SECONDS,
    STORE_RETRIES,
    STORE_UP,
    STORE_LAST_SUCCESS_TIMESTAMP_SECONDS,
    EXPIRE_FLUSHES,
    EXPIRE_WEDGED_TIMERS,
    EXPIRE_WEDGED_OLDEST_SECONDS,
    EXPIRE_REARMS,
    EXPIRE_WEDGES_LOST_SIGHT,
    TTL_WIPES,
    TTL_WIPED_SUSPENSIONS,
    TIMERS_EARLY,
    TIMER_LATENESS_SECONDS,
    BUNDLES,
    BUNDLE_FAILURES,
    TELEMETRY_DROPPED,
    TELEMETRY_INITIALISED,
    BUILD_INFO,
)

METRICS_FROM_ZERO: Final[tuple[Metric, ...]] = tuple(
    metric
    for metric in METRICS
    if metric.kind is MetricKind.COUNTER
    and metric.per_agent
    and next(metric.combinations("any"), None) is not None
)
"""Counters whose every series is there from the start: one that appears at 1 shows no increase."""

LABELS: Final[tuple[Label, ...]] = (
    Label("pipeline", "The pipeline's name, as given to RunAgent."),
    Label("agent", "The agent's name, as given to RunAgent."),
    Label("outcome", "How it ended."),
    Label("reason", "Why: of a record on the errors output, or of a plugin's loss."),
    Label("error_type", "The error's class; at most 50 per process, then `other`."),
    Label("result", "What was found, or what became of it."),
    Label("model", "The model's name, as the agent asked for it."),
    Label("direction", "Read by the model or written by it."),
    Label("tool", "The tool's name."),
    Label("trigger", "Which cap set it off."),
    Label("backend", "The long-term store's kind: inprocess, redis, bigtable, firestore, or an SQL dialect."),
    Label("operation", "What was asked of the store."),
    Label("flushed", "Whether the memory had been flushed, or there was none."),
    Label("phase", "Which of the DoFn's callbacks ran."),
    Label("plugin", "The telemetry plugin's name."),
    Label("version", "The version of beam-agents."),
    Label("beam_version", "The version of Apache Beam."),
)

# Spans

_MEMORY_ATTRIBUTES = (
    otel.GEN_AI_OPERATION_NAME,
    otel.GEN_AI_MEMORY_STORE_ID,
    otel.GEN_AI_MEMORY_RECORD_COUNT,
    otel.DB_SYSTEM_NAME,
    otel.DB_NAMESPACE,
    otel.DB_COLLECTION_NAME,
    otel.SERVER_ADDRESS,
    otel.SERVER_PORT,
)

SPAN_INVOKE_AGENT: Final = SpanName(
    f"{otel.INVOKE_AGENT} {{target}}",
    SpanKind.CONSUMER,
    "An activation, by its agent: under the event's traceparent, or in a trace that every retry shares.",
    (
        otel.GEN_AI_OPERATION_NAME,
        otel.GEN_AI_AGENT_NAME,
        otel.GEN_AI_CONVERSATION_ID,
        ours.SEQ,
        ours.ATTEMPT,
        ours.OUTCOME,
        ours.REASON,
        ours.ENTITY,
        ours.PIPELINE,
    ),
)
SPAN_MEMORY_DECODE: Final = SpanName(
    "memory.decode",
    SpanKind.INTERNAL,
    "Reading and decoding the key's state.",
    (ours.MEMORY_SIZE_BYTES, ours.MEMORY_ENTRIES),
)
SPAN_MEMORY_COMMIT: Final = SpanName(
    "memory.commit",
    SpanKind.INTERNAL,
    "Encoding and writing the key's state.",
    (ours.MEMORY_SIZE_BYTES, ours.MEMORY_ENTRIES),
)
SPAN_MEMORY_COMPACT: Final = SpanName(
    "memory.compact",
    SpanKind.INTERNAL,
    "One run of the compactor.",
    (
        ours.TRIGGER,
        ours.EVICTIONS,
        ours.EVICTED_BYTES,
        ours.MEMORY_SIZE_BEFORE_BYTES,
        ours.MEMORY_SIZE_AFTER_BYTES,
    ),
)
SPAN_MEMORY_SUMMARIZE: Final = SpanName(
    "memory.summarize",
    SpanKind.INTERNAL,
    "Folding old ring items into a summary.",
    (ours.SOURCE_BYTES, ours.SUMMARY_BYTES, ours.OUTCOME),
)
SPAN_CHAT: Final = SpanName(
    f"{otel.CHAT} {{target}}",
    SpanKind.CLIENT,
    "A model call, by its model; answered by the provider or from the replay cache.",
    (
        otel.GEN_AI_OPERATION_NAME,
        otel.GEN_AI_PROVIDER_NAME,
        otel.GEN_AI_REQUEST_MODEL,
        otel.GEN_AI_USAGE_INPUT_TOKENS,
        otel.GEN_AI_USAGE_OUTPUT_TOKENS,
        ours.CACHE_HIT,
    ),
)
SPAN_EXECUTE_TOOL: Final = SpanName(
    f"{otel.EXECUTE_TOOL} {{target}}",
    SpanKind.INTERNAL,
    "A read-only tool, by its name; run, or answered from the replay cache.",
    (otel.GEN_AI_OPERATION_NAME, otel.GEN_AI_TOOL_NAME, ours.CACHE_HIT),
)
SPAN_SEARCH_MEMORY: Final = SpanName(
    f"{otel.SEARCH_MEMORY} {{target}}",
    SpanKind.CLIENT,
    "A load from or a search of the long-term tier, by its store.",
    (
        *_MEMORY_ATTRIBUTES,
        otel.DB_OPERATION_NAME,
        ours.ROWS,
        ours.ROWS_BYTES,
        ours.ROWS_OVERLAID,
        ours.RETRIES,
    ),
)
SPAN_LONGTERM_STAGE: Final = SpanName(
    "longterm.stage",
    SpanKind.INTERNAL,
    "From the first save to the flush, in detailed tracing; each save is an event on the activation besides.",
    (ours.ROWS, ours.ROWS_BYTES, ours.KEY_LENGTH, ours.VALUE_BYTES),
)
SPAN_UPSERT_MEMORY: Final = SpanName(
    f"{otel.UPSERT_MEMORY} {{target}}",
    SpanKind.CLIENT,
    "A flush to the long-term tier, by its store; of an activation or of an expiry.",
    (
        *_MEMORY_ATTRIBUTES,
        otel.DB_OPERATION_NAME,
        otel.DB_OPERATION_BATCH_SIZE,
        ours.ROWS,
        ours.ROWS_BYTES,
        ours.ROWS_APPLIED,
        ours.ROWS_STALE,
        ours.RETRIES,
    ),
)
SPAN_DB_OPERATION: Final = SpanName(
    "{target}",
    SpanKind.CLIENT,
    "One attempt at a call of a store's client, named by the database convention: its operation and what it "
    "works on.",
    (
        otel.DB_SYSTEM_NAME,
        otel.DB_NAMESPACE,
        otel.DB_COLLECTION_NAME,
        otel.DB_OPERATION_NAME,
        otel.DB_OPERATION_BATCH_SIZE,
        otel.SERVER_ADDRESS,
        otel.SERVER_PORT,
    ),
)
SPAN_STORE_PROBE: Final = SpanName(
    "store.probe",
    SpanKind.INTERNAL,
    "A health probe of a store; only one that failed is worth keeping.",
)
SPAN_MEMORY_EXPIRE: Final = SpanName(
    "memory.expire",
    SpanKind.CONSUMER,
    "A key's expiry, linked to the key's last activation.",
    (ours.WEDGED_ATTEMPT, ours.AGE_SECONDS, ours.OUTCOME, ours.SEQ, ours.ENTITY, ours.PIPELINE),
)

SPANS: Final[tuple[SpanName, ...]] = (
    SPAN_INVOKE_AGENT,
    SPAN_MEMORY_DECODE,
    SPAN_MEMORY_COMMIT,
    SPAN_MEMORY_COMPACT,
    SPAN_MEMORY_SUMMARIZE,
    SPAN_CHAT,
    SPAN_EXECUTE_TOOL,
    SPAN_SEARCH_MEMORY,
    SPAN_LONGTERM_STAGE,
    SPAN_UPSERT_MEMORY,
    SPAN_DB_OPERATION,
    SPAN_STORE_PROBE,
    SPAN_MEMORY_EXPIRE,
)

# Log events

EVENT_ACTIVATION_FAILED: Final = LogEvent(
    "activation_failed",
    "An activation failed, or an element was refused; a record is on the errors output.",
    ("reason", "error_type", "seq", "attempt"),
    "error",
)
EVENT_MEMORY_EVICTED: Final = LogEvent(
    "memory_evicted",
    "The compactor evicted entries of a key's working memory.",
    ("trigger", "scalars", "rings", "evictions", "evicted_bytes", "size_bytes"),
    "info",
)
EVENT_MEMORY_OVERFLOW: Final = LogEvent(
    "memory_overflow",
    "A write was refused at the hard cap.",
    ("overflows",),
    "error",
)
EVENT_SUMMARY_FAILED: Final = LogEvent(
    "summary_failed",
    "Folding old ring items into a summary failed, and the activation with it.",
    ("error_type",),
    "error",
)
EVENT_LONGTERM_FLUSH_FAILED: Final = LogEvent(
    "longterm_flush_failed",
    "A flush to the long-term tier failed, and the activation with it.",
    ("backend", "error_type", "rows", "bytes", "retries"),
    "error",
)
EVENT_LONGTERM_UPSERT_STALE: Final = LogEvent(
    "longterm_upsert_stale",
    "The store refused rows because it holds newer ones.",
    ("backend", "rows", "seq"),
)
EVENT_STORE_DOWN: Final = LogEvent(
    "store_down",
    "A store stopped answering.",
    ("backend", "error_type"),
    "error",
)
EVENT_STORE_RECOVERED: Final = LogEvent(
    "store_recovered",
    "A store answers again.",
    ("backend", "down_seconds"),
    "info",
)
EVENT_EXPIRE_WEDGED: Final = LogEvent(
    "expire_wedged",
    "The flush of an expiring key failed; its memory is kept.",
    ("backend", "error_type", "attempt", "age_seconds"),
    "error",
)
EVENT_EXPIRE_RECOVERED: Final = LogEvent(
    "expire_recovered",
    "The flush of an expiring key succeeded after it had failed.",
    ("backend", "attempt", "age_seconds"),
    "info",
)
EVENT_SUSPENSION_WIPED: Final = LogEvent(
    "suspension_wiped",
    "A key expired while an activation of it was suspended: its work is lost.",
    ("seq",),
    "error",
)
EVENT_TELEMETRY_PLUGIN_FAILED: Final = LogEvent(
    "telemetry_plugin_failed",
    "A telemetry plugin raised or overran its bound; told once per plugin, type of error and problem.",
    ("plugin", "reason", "error_type", "problem"),
    "error",
)

EVENTS: Final[tuple[LogEvent, ...]] = (
    EVENT_ACTIVATION_FAILED,
    EVENT_MEMORY_EVICTED,
    EVENT_MEMORY_OVERFLOW,
    EVENT_SUMMARY_FAILED,
    EVENT_LONGTERM_FLUSH_FAILED,
    EVENT_LONGTERM_UPSERT_STALE,
    EVENT_STORE_DOWN,
    EVENT_STORE_RECOVERED,
    EVENT_EXPIRE_WEDGED,
    EVENT_EXPIRE_RECOVERED,
    EVENT_SUSPENSION_WIPED,
    EVENT_TELEMETRY_PLUGIN_FAILED,
)

# Reasons

REASON_HELP: Final[dict[Reason, str]] = {
    Reason.ACTIVATION_ERROR: "The agent, its model or a tool raised something that has no reason of its own.",
    Reason.ACTIVATION_TIMEOUT: "The activation took longer than `activation_timeout_s`.",
    Reason.BUDGET_EXCEEDED: "The activation used more tokens than `max_tokens_per_activation`.",
    Reason.INVALID_OUTCOME: "The agent returned no outcome, or one that could never be resumed.",
    Reason.MEMORY_OVERFLOW: "A write that would have put working memory over its hard cap was refused.",
    Reason.SUMMARY_FAILED: "Folding old ring items into a summary failed.",
    Reason.EVENT_TIME_IN_FUTURE: "The event's time is over `max_future_skew_ms` ahead of the worker's clock.",
    Reason.INVALID_ENVELOPE: "The element is no event that an activation could be run for.",
    Reason.STATE_UNDECODABLE: "The key's stored state does not decode.",
    Reason.STATE_VERSION_UNSUPPORTED: "The key's stored state was written by a newer version of beam-agents.",
    Reason.LONGTERM_READ_FAILED: "A read of the long-term tier failed, and the agent let it raise.",
    Reason.LONGTERM_FLUSH_FAILED: "What the activation saved could not be written to the long-term store.",
    Reason.ORPHANED_RESULT: "A tool result came that no suspension of the key waits for.",
    Reason.SUSPENSION_TIMEOUT: "A suspension's answers did not come within `suspension_timeout_ms`.",
    Reason.TTL_WIPED_SUSPENSION: "The key expired while a suspension waited for its answers.",
}

DROP_REASON_HELP: Final[dict[DropReason, str]] = {
    DropReason.BUILD: "The plugin could not be built: it tells nothing in this process.",
    DropReason.START: "It raised when an agent came up.",
    DropReason.BUNDLE: "It raised when a bundle began or failed.",
    DropReason.ACTIVATION: "It raised when an activation began.",
    DropReason.RECORD: "It raised on a record, and may have lost what was in it.",
    DropReason.FLUSH: "It raised while it sent what it had buffered.",
    DropReason.CLOSE: "It raised while it closed.",
    DropReason.TIMEOUT: "Its flush or close overran its bound and was left behind.",
}

_BY_NAME: Final[dict[tuple[str, str], Metric | SpanName | LogEvent]] = {
    **{("metric", metric.name): metric for metric in METRICS},
    **{("span", span.name): span for span in SPANS},
    **{("event", event.name): event for event in EVENTS},
}


def lookup(kind: str, name: str) -> Metric | SpanName | LogEvent:
    """Return the catalogue's entry of a name.

    Args:
        kind: ``"metric"``, ``"span"`` or ``"event"``.
        name: The entry's ``name``.

    Raises:
        KeyError: The catalogue has no such entry.
    """
    return _BY_NAME[kind, name]
