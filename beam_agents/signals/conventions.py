"""Names that OpenTelemetry's semantic conventions give: the only module that spells them.

The GenAI conventions live in a repository of their own and are marked Development: their names may move.
What is here is what the pinned schemas say; raise a pin and the names below it together.
"""

from __future__ import annotations

from typing import Final

# The core conventions: database, error, server (stable).
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
# The GenAI conventions (Development), built on the core above.
GEN_AI_SCHEMA_URL: Final = "https://opentelemetry.io/schemas/gen-ai-dev/1.42.0-dev"

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_AGENT_NAME: Final = "gen_ai.agent.name"
GEN_AI_CONVERSATION_ID: Final = "gen_ai.conversation.id"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105 - a kind of token that models read, no secret
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_MEMORY_STORE_ID: Final = "gen_ai.memory.store.id"
GEN_AI_MEMORY_RECORD_COUNT: Final = "gen_ai.memory.record.count"

# Content, in development alone.
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
GEN_AI_TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

# Values of gen_ai.operation.name.
INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
SEARCH_MEMORY: Final = "search_memory"
UPSERT_MEMORY: Final = "upsert_memory"
UPDATE_MEMORY: Final = "update_memory"
DELETE_MEMORY: Final = "delete_memory"

# Values of gen_ai.token.type.
TOKEN_TYPE_INPUT: Final = "input"  # noqa: S105 - as above
TOKEN_TYPE_OUTPUT: Final = "output"  # noqa: S105 - as above

DB_SYSTEM_NAME: Final = "db.system.name"
DB_NAMESPACE: Final = "db.namespace"
DB_COLLECTION_NAME: Final = "db.collection.name"
DB_OPERATION_NAME: Final = "db.operation.name"
DB_OPERATION_BATCH_SIZE: Final = "db.operation.batch.size"

# Values of db.system.name, by our label of the backend. The convention knows some of them; for one that it
# does not know it asks for a lower-case name.
DB_SYSTEMS: Final[dict[str, str]] = {
    "inprocess": "beam_agents.inprocess",
    "redis": "redis",
    "bigtable": "gcp.bigtable",
    "firestore": "gcp.firestore",
    "postgresql": "postgresql",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mariadb",
}

# Instruments, with the buckets that the conventions advise.
GEN_AI_CLIENT_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
GEN_AI_CLIENT_TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - as above
DB_CLIENT_OPERATION_DURATION: Final = "db.client.operation.duration"

BUCKETS: Final[dict[str, tuple[float, ...]]] = {
    GEN_AI_CLIENT_OPERATION_DURATION: tuple(round(0.01 * 2**n, 2) for n in range(14)),
    GEN_AI_CLIENT_TOKEN_USAGE: tuple(float(4**n) for n in range(14)),
    DB_CLIENT_OPERATION_DURATION: (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
}
UNITS: Final[dict[str, str]] = {
    GEN_AI_CLIENT_OPERATION_DURATION: "s",
    GEN_AI_CLIENT_TOKEN_USAGE: "{token}",
    DB_CLIENT_OPERATION_DURATION: "s",
}
