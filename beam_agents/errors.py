"""The project's exceptions: one hierarchy, with typed attributes.

Every message is built from the attributes alone, so no memory value, event, prompt or credential can reach
a log through an exception of ours.
"""

from __future__ import annotations

import hashlib

__all__ = [
    "ActivationClosed",
    "BeamAgentsError",
    "BudgetExceeded",
    "BundleFailure",
    "ExpireFlushFailed",
    "InvalidArgument",
    "InvalidArgumentType",
    "InvalidOutcome",
    "LongTermDisabled",
    "MemoryKindError",
    "MemoryOverflow",
    "ModelDisabled",
    "PluginUnusable",
    "StateUndecodable",
    "StateVersionUnsupported",
    "StoreError",
    "StoreRejected",
    "StoreTimeout",
    "StoreUnavailable",
    "SummaryNotSmaller",
    "UnknownTool",
    "hash_entity_key",
]


def hash_entity_key(entity_key: bytes) -> str:
    """Return the form in which an entity key may be shown: 16 hex digits of its BLAKE2b hash."""
    return hashlib.blake2b(entity_key, digest_size=8).hexdigest()


class BeamAgentsError(Exception):
    """The base of every exception that this project defines."""


class InvalidArgument(BeamAgentsError, ValueError):
    """Something of ours was called, by an agent or as configuration, with a value that it may not have.

    Attributes:
        problem: What is wrong and what would be right. Holds names, types and sizes, no content.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return self.problem


class InvalidArgumentType(InvalidArgument, TypeError):
    """Something of ours was called with a value of a type that it may not be of."""


class PluginUnusable(BeamAgentsError):
    """A telemetry plugin, or a part of it, cannot work in this process.

    Attributes:
        problem: What is wrong and what would mend it. Holds paths, ports and names of variables, no content.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)


class UnknownTool(InvalidArgument, LookupError):
    """``ctx.run_tool`` was asked for a tool that ``AgentConfig.tools`` does not have."""


class MemoryOverflow(BeamAgentsError):
    """A write would have put a key's working memory over its hard cap; memory is as it was.

    Attributes:
        key: The memory key that was being written.
        attempted_bytes: What the working memory would have measured after the write.
        cap_bytes: The hard cap.
    """

    def __init__(self, key: str, attempted_bytes: int, cap_bytes: int) -> None:
        self.key = key
        self.attempted_bytes = attempted_bytes
        self.cap_bytes = cap_bytes
        super().__init__(key, attempted_bytes, cap_bytes)

    def __str__(self) -> str:
        return (
            f"working memory would be {self.attempted_bytes} bytes, over the hard cap of {self.cap_bytes}, "
            "and nothing (more) may be evicted; the write was refused and memory is as it was"
        )


class MemoryKindError(BeamAgentsError, TypeError):
    """A memory key holds a ring where a scalar was asked for, or the other way round.

    Attributes:
        key: The memory key.
        expected: What the call works on, ``"scalar"`` or ``"ring"``.
        actual: What the key holds.
    """

    def __init__(self, key: str, expected: str, actual: str) -> None:
        self.key = key
        self.expected = expected
        self.actual = actual
        super().__init__(key, expected, actual)

    def __str__(self) -> str:
        return (
            f"the memory key holds a {self.actual}, and this call works on a {self.expected}; delete it first"
        )


class StateUndecodable(BeamAgentsError):
    """Stored bytes of a key do not decode; they are left as they are.

    Attributes:
        cell: The state cell's name.
        entity: The entity key's hash, where it is known.
    """

    def __init__(self, cell: str, entity: str = "") -> None:
        self.cell = cell
        self.entity = entity
        super().__init__(cell, entity)

    def __str__(self) -> str:
        entity = self.entity or "unknown"
        return f"state cell {self.cell!r} of entity {entity} does not decode; it is left as it is"


class StateVersionUnsupported(BeamAgentsError):
    """Stored bytes of a key were written by a newer version; they are left as they are.

    Attributes:
        cell: The state cell's name.
        found: The version in the stored bytes.
        supported: The newest version that this code reads.
        entity: The entity key's hash, where it is known.
    """

    def __init__(self, cell: str, found: int, supported: int, entity: str = "") -> None:
        self.cell = cell
        self.found = found
        self.supported = supported
        self.entity = entity
        super().__init__(cell, found, supported, entity)

    def __str__(self) -> str:
        return (
            f"state cell {self.cell!r} of entity {self.entity or 'unknown'} has state_schema_version "
            f"{self.found}, and this version of beam-agents reads up to {self.supported}; it is left as it is"
        )


class LongTermDisabled(BeamAgentsError):
    """``ctx.memory.longterm`` was used without ``AgentConfig.longterm_memory``."""

    def __str__(self) -> str:
        return "the long-term tier is off: set AgentConfig.longterm_memory to a store's URI"


class ModelDisabled(BeamAgentsError):
    """``ctx.call_model`` was used without ``AgentConfig.provider_factory``."""

    def __str__(self) -> str:
        return "no model is configured: set AgentConfig.provider_factory"


class BudgetExceeded(BeamAgentsError):
    """An activation used more tokens than ``AgentConfig.max_tokens_per_activation``.

    Attributes:
        used_tokens: Prompt and completion tokens that the activation had used.
        max_tokens: The budget.
    """

    def __init__(self, used_tokens: int, max_tokens: int) -> None:
        self.used_tokens = used_tokens
        self.max_tokens = max_tokens
        super().__init__(used_tokens, max_tokens)

    def __str__(self) -> str:
        return f"the activation used {self.used_tokens} tokens of the {self.max_tokens} that it may use"


class ActivationClosed(BeamAgentsError):
    """A context was used after its activation had ended (by a task that the agent left behind, say)."""

    def __str__(self) -> str:
        return "this activation has ended: nothing that is done with its context now can be committed"


class InvalidOutcome(BeamAgentsError, TypeError):
    """An agent returned something that is no outcome, or an outcome that cannot be.

    Attributes:
        problem: What is wrong with it, and what would be right. Holds types and counts, no content.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(problem)

    def __str__(self) -> str:
        return self.problem


class SummaryNotSmaller(BeamAgentsError, ValueError):
    """A summary would take at least as many bytes as what it replaces.

    Attributes:
        source_bytes: Bytes of the folded items and of the prior summary.
        summary_bytes: Bytes of the new summary.
    """

    def __init__(self, source_bytes: int, summary_bytes: int) -> None:
        self.source_bytes = source_bytes
        self.summary_bytes = summary_bytes
        super().__init__(source_bytes, summary_bytes)

    def __str__(self) -> str:
        return (
            f"the summary has {self.summary_bytes} bytes and replaces {self.source_bytes}: "
            "extract_summary must return fewer bytes than it was given"
        )


class BundleFailure(BeamAgentsError):
    """Something that is no activation's fault, and that a retry may mend: it fails the bundle.

    Raised out of the DoFn, so that the runner rolls back and retries; never turned into a record on the
    errors output.
    """


class ExpireFlushFailed(BundleFailure):
    """An expiring key's memory could not be written to the long-term store; the key keeps it.

    Attributes:
        backend: The backend's label.
        entity: The entity key's hash.
        cause_type: The class of what failed it.
    """

    def __init__(self, backend: str, entity: str, cause_type: str) -> None:
        self.backend = backend
        self.entity = entity
        self.cause_type = cause_type
        super().__init__(backend, entity, cause_type)

    def __str__(self) -> str:
        return (
            f"{self.backend}: the memory of the expiring entity {self.entity} could not be written "
            f"({self.cause_type}); it is kept, and the timer's bundle fails, so that the runner tries again"
        )


class StoreError(BeamAgentsError):
    """A call to a long-term store failed.

    Attributes:
        backend: The backend's label.
        operation: What was asked: ``"load"``, ``"search"``, ``"flush"``, …
        cause_type: The class of what the client raised; empty where nothing was raised.
        attempts: How often it was tried.
    """

    transient = False
    """Whether trying again may help."""

    def __init__(self, backend: str, operation: str, cause_type: str = "", attempts: int = 1) -> None:
        self.backend = backend
        self.operation = operation
        self.cause_type = cause_type
        self.attempts = attempts
        super().__init__(backend, operation, cause_type, attempts)

    def __str__(self) -> str:
        cause = f" ({self.cause_type})" if self.cause_type else ""
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return f"{self.backend}: {self.operation} failed{cause} after {times}: {self._what()}"

    def _what(self) -> str:
        return "the store raised"


class StoreUnavailable(StoreError):
    """The store could not be reached, or ended the connection, or says that it is overloaded."""

    transient = True

    def _what(self) -> str:
        return "the store is unavailable; a later try may succeed"


class StoreTimeout(StoreError):
    """The store did not answer within the deadline. A write may have happened all the same."""

    transient = True

    def _what(self) -> str:
        return "the store did not answer in time"


class StoreRejected(StoreError):
    """The store refused the call: a missing table, a missing permission, a row that is too large.

    Attributes:
        problem: What is wrong and what would mend it. Holds names and sizes, no content.
    """

    def __init__(
        self, backend: str, operation: str, cause_type: str = "", attempts: int = 1, *, problem: str = ""
    ) -> None:
        self.problem = problem
        super().__init__(backend, operation, cause_type, attempts)

    def _what(self) -> str:
        return self.problem or "the store refused the call"
