"""From what an operator writes in ``AgentConfig.telemetry`` to plugins, checked at once.

A string is ``name`` or ``name?option=value&option=value``; options may be percent-encoded, and no value is
empty. The name is looked up among the entry points of the group ``beam_agents.telemetry``, so that installing
a package adds a plugin.
"""

from __future__ import annotations

import inspect
import pickle
import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from beam_agents.errors import InvalidArgument
from beam_agents.signals.observer import TelemetryPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.metadata import EntryPoint

__all__ = ["ENTRY_POINT_GROUP", "InstalledPlugin", "installed_plugins", "resolve_plugins"]

ENTRY_POINT_GROUP: Final = "beam_agents.telemetry"

# A name becomes a label's value and part of a thread's name.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIELD: Final = "AgentConfig.telemetry"


def resolve_plugins(plugins: Sequence[str | TelemetryPlugin]) -> tuple[TelemetryPlugin, ...]:
    """Return the plugins that are meant, each checked.

    Args:
        plugins: Plugins, as objects or as ``"name?option=value"``; empty for none.

    Raises:
        TypeError: Something that is neither.
        ValueError: An unknown name, an option that the plugin does not take or refuses, a name given twice,
            or a plugin that cannot travel with the pipeline.
        ImportError: A plugin's module, or something that it needs, is not installed.
    """
    if isinstance(plugins, str) or not hasattr(plugins, "__iter__"):
        raise TypeError(
            f"{_FIELD} must be a sequence of plugins or of their names, not {_kind(plugins)}; "
            'for one plugin write ["beam"]'
        )
    resolved = tuple(_from_text(each) if isinstance(each, str) else _checked(each) for each in plugins)
    names = [plugin.name for plugin in resolved]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{_FIELD} names more than once: {', '.join(twice)}")
    return resolved


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """A plugin that can be named, as its entry point tells of it.

    Attributes:
        name: Its name.
        source: The distribution that has it, and that one's version.
        options: (option, default as it is written) of each; None where the option must be given.
        summary: The first line of its documentation.
        problem: Why it cannot be used, and what would mend that; empty if it can.
    """

    name: str
    source: str
    options: tuple[tuple[str, str | None], ...] = ()
    summary: str = ""
    problem: str = ""


def installed_plugins() -> list[InstalledPlugin]:
    """Return all plugins that are installed, by name, those that cannot be used included."""
    points = {(point.name, point.value): point for point in entry_points(group=ENTRY_POINT_GROUP)}
    names = [name for name, _ in points]
    return [_described(point, alone=names.count(name) == 1) for (name, _), point in sorted(points.items())]


def _described(point: EntryPoint, *, alone: bool) -> InstalledPlugin:
    source = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
    try:
        factory = _loaded(point)
        if not callable(factory):
            return InstalledPlugin(
                point.name, source, problem=f"its entry point is no factory, but a {_kind(factory)}"
            )
        parameters = _parameters(point.name, factory)
    except (ImportError, ValueError) as error:
        return InstalledPlugin(point.name, source, problem=_without_field(str(error)))
    summary = (inspect.getdoc(factory) or "").partition("\n")[0]
    options = tuple(
        (each.name, None if each.default is each.empty else _shown(each.default))
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name != "name"
    )
    problem = "" if alone else "more than one package provides it"
    if not _is_name(point.name):
        problem = f"its name must match {_NAME.pattern}"
    return InstalledPlugin(point.name, source, options, summary, problem)


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    # Another object's own text may be anything, and is none that could be given here.
    return str(default) if isinstance(default, str | int | float) else ""


def _without_field(problem: str) -> str:
    return problem.removeprefix(f"{_FIELD}: ")


def _from_text(text: str) -> TelemetryPlugin:
    name, _, query = text.partition("?")
    factory = _factory(name)
    options = _options(name, query)
    _check_options(name, factory, options)
    try:
        plugin = factory(**options)
    except InvalidArgument as error:
        problem = error.problem.removeprefix(f"{name}: ")
        raise ValueError(f"{_FIELD}: plugin {name!r} refused its options: {problem}") from error
    except Exception as error:
        # The text of the error may hold the option's value, so it stays in the cause.
        given = ", ".join(options) or "none"
        raise ValueError(
            f"{_FIELD}: plugin {name!r} refused its options (given: {given}): {type(error).__name__}"
        ) from error
    checked = _checked(plugin)
    if checked.name != name:
        raise ValueError(f"{_FIELD}: the plugin called {name!r} calls itself {checked.name!r}")
    return checked


def _factory(name: str) -> Callable[..., object]:
    found: dict[str, EntryPoint] = {}
    known = entry_points(group=ENTRY_POINT_GROUP)
    for point in known:
        if point.name == name:
            # One distribution may be seen twice on the path; that is no conflict.
            found[point.value] = point
    if not found:
        names = ", ".join(sorted(known.names)) or "none: install a package that has one"
        # What was given may have been meant as something else, such as a URI with a password.
        what = f"knows no plugin {name!r}" if _is_name(name) else "has a text that is no plugin's name"
        raise ValueError(f"{_FIELD} {what}; there: {names}")
    if len(found) > 1:
        raise ValueError(
            f"{_FIELD}: more than one package provides a plugin {name!r}: {', '.join(sorted(found))}"
        )
    (point,) = found.values()
    factory = _loaded(point)
    if not callable(factory):
        raise TypeError(
            f"{_FIELD}: the entry point of plugin {name!r} must be a factory, not {_kind(factory)}"
        )
    return factory


def _loaded(point: EntryPoint) -> object:
    try:
        return cast("object", point.load())
    except ImportError as error:
        missing = error.name or "something that it needs"
        raise ImportError(
            f"{_FIELD}: plugin {point.name!r} cannot be loaded, {missing} is missing{_remedy(point)}"
        ) from error
    except AttributeError as error:
        raise ImportError(
            f"{_FIELD}: plugin {point.name!r} cannot be loaded, there is no {point.value}"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # One package's fault, sys.exit() at its import even, does not hide the others.
        raise ImportError(
            f"{_FIELD}: plugin {point.name!r} cannot be loaded, its import raised {_kind(error)}"
        ) from error


def _parameters(name: str, factory: Callable[..., object]) -> list[inspect.Parameter]:
    """Return what a factory takes."""
    try:
        return list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError) as error:
        # A class that is written in C, say.
        raise ValueError(f"{_FIELD}: plugin {name!r} does not tell what options it takes") from error


def _remedy(point: EntryPoint) -> str:
    """Return which extra to install, where the entry point names one."""
    if not point.extras or point.dist is None:
        return ""
    return f": pip install '{point.dist.name}[{','.join(point.extras)}]'"


def _options(name: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        option, equals, value = part.partition("=")
        option = unquote(option)
        if not equals or not option.isidentifier():
            raise ValueError(f"{_FIELD}: plugin {name!r} has an option that is not written option=value")
        if option in options:
            raise ValueError(f"{_FIELD}: plugin {name!r} has the option {option!r} more than once")
        if not value:
            # A variable of the shell that is not set, more often than not: TLS or a password would be off.
            raise ValueError(
                f"{_FIELD}: plugin {name!r} has an empty {option!r}; leave it out for its default"
            )
        options[option] = unquote(value)
    return options


def _check_options(name: str, factory: Callable[..., object], options: Mapping[str, str]) -> None:
    """Refuse options that the factory does not take, and a call without those that it needs."""
    parameters = _parameters(name, factory)
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    takes = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    names = [each.name for each in takes]
    unknown = [option for option in options if option not in names]
    if unknown:
        there = ", ".join(names) or "none"
        raise ValueError(f"{_FIELD}: plugin {name!r} has no option {unknown[0]!r}; there: {there}")
    missing = [each.name for each in takes if each.default is each.empty and each.name not in options]
    if missing:
        raise ValueError(f"{_FIELD}: plugin {name!r} needs the option {missing[0]!r}")


def _checked(plugin: object) -> TelemetryPlugin:
    if isinstance(plugin, type):
        raise TypeError(f"{_FIELD} takes plugins, not their classes: write {plugin.__name__}(...)")
    if not isinstance(plugin, TelemetryPlugin):
        raise TypeError(
            f"{_FIELD} must hold names or plugins (a name, and build() that returns an Observer), "
            f"not {_kind(plugin)}"
        )
    name = plugin.name
    if not _is_name(name):
        raise ValueError(f"{_FIELD}: the name of a {_kind(plugin)} must match {_NAME.pattern}")
    _check_travels(name, plugin)
    return plugin


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _check_travels(name: str, plugin: TelemetryPlugin) -> None:
    """Refuse a plugin that cannot go to the workers, or that would be another one there."""
    try:
        copy = pickle.loads(pickle.dumps(plugin))  # noqa: S301 - our own bytes, of a moment ago
    except Exception as error:
        raise ValueError(
            f"{_FIELD}: plugin {name!r} cannot be pickled ({type(error).__name__}); keep configuration in it "
            "and make what is live in build()"
        ) from error
    try:
        same = copy == plugin and hash(copy) == hash(plugin)
    except TypeError as error:
        raise ValueError(f"{_FIELD}: plugin {name!r} cannot be hashed; make it a frozen dataclass") from error
    if not same:
        raise ValueError(
            f"{_FIELD}: plugin {name!r} does not equal its own copy; make it a frozen dataclass, so that "
            "agents of one process share it"
        )


def _kind(value: object) -> str:
    return type(value).__name__
