"""The names of OpenTelemetry's conventions are those of the installed package."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

import opentelemetry.semconv._incubating.attributes as incubating
import opentelemetry.semconv._incubating.metrics as incubating_metrics
import pytest
from opentelemetry.semconv import attributes as stable
from opentelemetry.semconv._incubating.attributes.db_attributes import DbSystemNameValues
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import (
    GenAiOperationNameValues,
    GenAiTokenTypeValues,
)
from opentelemetry.semconv.schemas import Schemas

from beam_agents.signals import catalogue, conventions

# Of the GenAI conventions' own repository, which the package does not follow any more: it says so of all of
# their names ("Moved to the OpenTelemetry GenAI semantic conventions repository").
NEWER_ATTRIBUTES: Final = {
    conventions.GEN_AI_MEMORY_STORE_ID,
    conventions.GEN_AI_MEMORY_RECORD_COUNT,
}
NEWER_OPERATIONS: Final = {
    conventions.SEARCH_MEMORY,
    conventions.UPSERT_MEMORY,
    conventions.UPDATE_MEMORY,
    conventions.DELETE_MEMORY,
}
# Systems that the convention has no name for: it asks for a lower-case one of one's own.
OWN_SYSTEMS: Final = {"inprocess", "bigtable", "firestore"}


def names(*packages: object) -> set[str]:
    """Return the values of all constants of the packages' modules."""
    found = set()
    for package in packages:
        path, prefix = package.__path__, package.__name__  # type: ignore[attr-defined]  # it is a package
        for module in pkgutil.iter_modules(path, f"{prefix}."):
            constants = vars(importlib.import_module(module.name))
            found |= {value for name, value in constants.items() if name.isupper() and isinstance(value, str)}
    return found


ATTRIBUTES: Final = names(incubating, stable)
OURS: Final = {
    name: value
    for name, value in vars(conventions).items()
    if name.isupper() and isinstance(value, str) and "." in value and not value.startswith("http")
}


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_name_is_the_conventions(name: str) -> None:
    value = OURS[name]
    if value in conventions.UNITS:
        assert value in names(incubating_metrics)
    else:
        assert (value in ATTRIBUTES) != (value in NEWER_ATTRIBUTES), "a newer name has become an old one"


def test_every_attribute_of_a_span_is_ours_or_the_conventions() -> None:
    for span in catalogue.SPANS:
        for key in span.attributes:
            assert key.startswith("beam_agents.") or key in ATTRIBUTES | NEWER_ATTRIBUTES, key


def test_values_are_the_conventions() -> None:
    known = {each.value for each in GenAiOperationNameValues}
    operations = {conventions.INVOKE_AGENT, conventions.CHAT, conventions.EXECUTE_TOOL}
    assert operations <= known
    assert not NEWER_OPERATIONS & known, "a newer name has become an old one"
    tokens = {conventions.TOKEN_TYPE_INPUT, conventions.TOKEN_TYPE_OUTPUT}
    assert tokens == {each.value for each in GenAiTokenTypeValues}


def test_systems_are_the_conventions() -> None:
    known = {each.value for each in DbSystemNameValues}
    for backend, system in conventions.DB_SYSTEMS.items():
        assert (system in known) != (backend in OWN_SYSTEMS), backend
        assert system == system.lower()


def test_the_schema_is_one_that_there_is() -> None:
    assert conventions.SCHEMA_URL in {each.value for each in Schemas}
    for metric in catalogue.METRICS:
        assert not metric.convention or metric.convention in conventions.UNITS
