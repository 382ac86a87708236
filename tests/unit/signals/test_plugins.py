from __future__ import annotations

import importlib.metadata
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING

import pytest

from beam_agents.signals import Observer, TelemetryPlugin, plugins, resolve_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = __name__


@dataclass(frozen=True)
class Printer:
    prefix: str = ""
    port: int = 0
    name: str = "printer"

    def build(self) -> Observer:
        return Observer()


@dataclass(frozen=True)
class Unpicklable(Printer):
    action: object = field(default_factory=lambda: lambda: None, compare=False)


@dataclass
class Unhashable:
    name: str = "printer"

    def build(self) -> Observer:
        return Observer()


class ByIdentity:
    name = "identity"

    def build(self) -> Observer:
        return Observer()


class NoName:
    def build(self) -> Observer:
        return Observer()


class NoBuild:
    name = "none"


def make_printer(*, prefix: str = "", port: str = "0") -> Printer:
    return Printer(prefix, int(port))


def make_needy(*, endpoint: str) -> Printer:
    return Printer(endpoint, name="needy")


def make_anything(**options: str) -> Printer:
    return Printer("&".join(f"{key}={value}" for key, value in options.items()), name="anything")


def make_another() -> Printer:
    return Printer(name="another")


def make_nothing() -> object:
    return object()


not_a_factory = 1


def install(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    known = EntryPoints(points)
    monkeypatch.setattr(plugins, "entry_points", known.select)


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, plugins.ENTRY_POINT_GROUP)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plugins_of_a_test", sys.modules[HERE])
    install(
        monkeypatch,
        *(
            point(name, f"plugins_of_a_test:{factory}")
            for name, factory in {
                "printer": "make_printer",
                "needy": "make_needy",
                "anything": "make_anything",
                "misnamed": "make_another",
                "nothing": "make_nothing",
                "number": "not_a_factory",
                "gone": "no_such_factory",
                "conflict": "make_another",
            }.items()
        ),
        point("conflict", "plugins_of_a_test:make_nothing"),
        point("missing", "no_such_module.of_ours:make"),
        # The same distribution, seen twice on the path.
        point("printer", "plugins_of_a_test:make_printer"),
    )


def test_none() -> None:
    assert resolve_plugins(()) == ()


def test_objects_stay_as_they_are_in_their_order() -> None:
    first, second = Printer(name="b"), Printer(name="a")
    assert resolve_plugins([first, second]) == (first, second)
    assert resolve_plugins(iter([first])) == (first,)  # type: ignore[arg-type]  # an iterator will do, too


@pytest.mark.parametrize(
    ("text", "plugin"),
    [
        ("printer", Printer()),
        ("printer?", Printer()),
        ("printer?prefix=a&port=9464", Printer("a", 9464)),
        ("printer?prefix=http://host:4318/v1?x=1+2", Printer("http://host:4318/v1?x=1+2")),
        ("printer?prefix=a%26b%3Dc%20d", Printer("a&b=c d")),
        ("anything?a=1&b=2", Printer("a=1&b=2", name="anything")),
        ("needy?endpoint=x", Printer("x", name="needy")),
    ],
)
def test_names_and_options(text: str, plugin: Printer) -> None:
    assert resolve_plugins([text]) == (plugin,)


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        (
            "printer",
            TypeError,
            r"must be a sequence of plugins .* not str; for one plugin write \[\"beam\"\]",
        ),
        (7, TypeError, "must be a sequence of plugins or of their names, not int"),
        ([7], TypeError, "must hold names or plugins .* not int"),
        ([NoName()], TypeError, "must hold names or plugins .* not NoName"),
        ([NoBuild()], TypeError, "must hold names or plugins .* not NoBuild"),
        ([Printer], TypeError, r"takes plugins, not their classes: write Printer\(...\)"),
        ([Printer(name="")], ValueError, "the name of a Printer must match"),
        ([Printer(name="a b")], ValueError, "the name of a Printer must match"),
        (["printr"], ValueError, "knows no plugin 'printr'; there: anything, .*, printer"),
        ([""], ValueError, "has a text that is no plugin's name; there: anything"),
        (["printer?colour=red"], ValueError, "'printer' has no option 'colour'; there: prefix, port"),
        (["printer?port"], ValueError, "'printer' has an option that is not written option=value"),
        (["printer?=1"], ValueError, "'printer' has an option that is not written option=value"),
        (["printer?port=1&port=2"], ValueError, "'printer' has the option 'port' more than once"),
        (["printer?prefix="], ValueError, "'printer' has an empty 'prefix'; leave it out for its default"),
        (["printer?port=x"], ValueError, r"'printer' refused its options \(given: port\): ValueError"),
        (["needy"], ValueError, "'needy' needs the option 'endpoint'"),
        (["misnamed"], ValueError, "the plugin called 'misnamed' calls itself 'another'"),
        (["nothing"], TypeError, "must hold names or plugins .* not object"),
        (["number"], TypeError, "the entry point of plugin 'number' must be a factory, not int"),
        (["gone"], ImportError, "'gone' cannot be loaded, there is no plugins_of_a_test:no_such_factory"),
        (["missing"], ImportError, "'missing' cannot be loaded, no_such_module is missing"),
        (
            ["conflict"],
            ValueError,
            "more than one package provides a plugin 'conflict': plugins_of_a_test:make_a",
        ),
        (["printer", Printer("x")], ValueError, "names more than once: printer"),
        ([Unpicklable()], ValueError, "'printer' cannot be pickled"),
        ([Unhashable()], ValueError, "'printer' cannot be hashed; make it a frozen dataclass"),
        ([ByIdentity()], ValueError, "'identity' does not equal its own copy; make it a frozen dataclass"),
    ],
)
def test_what_is_wrong_is_told(given: list[str | TelemetryPlugin], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=rf"^AgentConfig\.telemetry.*{told}"):
        resolve_plugins(given)


@pytest.mark.parametrize(
    "text",
    [
        "redis://user:sk-secret@host/0",
        "printer?port=sk-secret",
        "printer?sk-secret",
        "printer?port=1&port=sk-secret",
    ],
)
def test_no_value_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"AgentConfig\.telemetry") as caught:
        resolve_plugins([text])
    assert "sk-secret" not in str(caught.value)


def test_a_missing_library_is_told_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, distribution: Callable[[str], importlib.metadata.Distribution]
) -> None:
    text = f"[{plugins.ENTRY_POINT_GROUP}]\nscrape = no_such_module:make [prometheus]\n"
    install(monkeypatch, *distribution(text).entry_points)
    with pytest.raises(
        ImportError, match=r"no_such_module is missing: pip install 'some-agents\[prometheus\]'"
    ):
        resolve_plugins(["scrape"])


@pytest.fixture
def distribution(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], importlib.metadata.Distribution]:
    def make(entry_points: str) -> importlib.metadata.Distribution:
        folder = tmp_path_factory.mktemp("site") / "some_agents-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: some-agents\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(entry_points)
        return importlib.metadata.PathDistribution(folder)

    return make


def test_what_this_project_installs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", importlib.metadata.entry_points)
    (plugin,) = resolve_plugins(["beam"])
    assert plugin.name == "beam"
    with pytest.raises(ValueError, match=r"'beam' has no option 'port'; there: none"):
        resolve_plugins(["beam?port=1"])
