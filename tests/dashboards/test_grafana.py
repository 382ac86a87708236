"""The dashboards: as they are built, against the catalogue, by the rules of Grafana's dashboard linter."""

from __future__ import annotations

import json
import pathlib
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from beam_agents.signals import catalogue
from beam_agents.signals.types import MetricKind
from beam_agents_dashboards.check import recorded_names, selected
from beam_agents_dashboards.grafana import dashboards, recorded
from beam_agents_dashboards.grafana.frame import COLUMNS
from beam_agents_dashboards.grafana.queries import selector
from beam_agents_dashboards.names import Dashboard
from beam_agents_dashboards.prometheus_files import rule_files
from beam_agents_dashboards.settings import Settings
from beam_agents_dashboards.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

BOARDS: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in dashboards(Settings()).items()}
PANELS = [
    pytest.param(board, panel, id=f"{board['uid']}: {panel['title']}")
    for board in BOARDS.values()
    for panel in board["panels"]
    if panel["type"] != "row"
]
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
each_panel = pytest.mark.parametrize(("board", "panel"), PANELS)

# What others make: Prometheus itself and Python's client.
FOREIGN = {
    "up": {"job", "instance"},
    "ALERTS": {"alertname", "alertstate"},
    "process_cpu_seconds_total": {"job", "instance"},
    "process_resident_memory_bytes": {"job", "instance"},
    "process_open_fds": {"job", "instance"},
    "process_start_time_seconds": {"job", "instance"},
}
# Metrics that are on no panel, and why.
UNSHOWN: dict[str, str] = {}
HISTOGRAM_ENDS = ("_bucket", "_count", "_sum")


def test_built_files_are_those_of_the_source() -> None:
    for name, text in dashboards(Settings()).items():
        assert (shipped("grafana") / name).read_text(encoding="utf-8") == text, (
            f"{name} is not as its source builds it: python -m beam_agents_dashboards"
        )
    assert {path.name for path in shipped("grafana").glob("*.json")} == set(BOARDS)


def test_there_is_every_dashboard_that_alerts_link_to() -> None:
    assert {board["uid"] for board in BOARDS.values()} == set(Dashboard)


def substituted(expr: str) -> str:
    """Return a query with Grafana's variables replaced by what Prometheus takes."""
    return re.sub(r"\$(?:\{)?(\w+)\}?", lambda found: "5m" if found[1].startswith("__") else ".+", expr)


def queries(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel.get("targets") or ():
            yield target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["target"]["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])[1]  # type: ignore[index]


def metric_of(name: str) -> Any:
    """Return the catalogue's metric of a Prometheus name; None if it is of others."""
    known = {metric.prometheus_name: metric for metric in catalogue.METRICS}
    for end in HISTOGRAM_ENDS:
        metric = known.get(name.removesuffix(end))
        if name.endswith(end) and metric is not None and metric.kind is MetricKind.HISTOGRAM:
            return metric
    return known.get(name)


@each_board
def test_every_query_is_of_the_catalogue(board: dict[str, Any]) -> None:
    for expr in queries(board):
        for found in selected(substituted(expr)):
            metric = metric_of(found.name)
            labels = set(found.labels)
            if metric is not None:
                own = {"job", "instance", "le", *metric.labels}
                assert labels <= (own | {"pipeline", "agent"} if metric.per_agent else own), expr
                assert metric.kind is not MetricKind.HISTOGRAM or found.name.endswith(HISTOGRAM_ENDS), expr
            elif ":" in found.name:
                assert found.name in recorded_names(), f"no recording rule makes {found.name}"
                assert labels <= {"job", "pipeline", "agent", "backend"}
            else:
                assert labels <= FOREIGN[found.name], expr


def test_every_metric_is_on_a_panel() -> None:
    shown = {
        metric.name
        for board in BOARDS.values()
        for panel in board["panels"]
        for target in panel.get("targets") or ()
        for found in selected(substituted(target["expr"]))
        if (metric := metric_of(found.name)) is not None
    }
    assert {metric.name for metric in catalogue.METRICS} - shown == set(UNSHOWN)


def test_a_label_that_a_metric_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="store_up has no label agent"):
        selector(catalogue.STORE_UP, agent='="a"')


def test_the_rules_that_tell_whether_rules_are_loaded_are_there() -> None:
    assert recorded.RULES_LOADED.removeprefix("0 * ") in recorded_names()


# The rules of Grafana's dashboard linter.


@each_panel
def test_panel_says_what_it_is(board: dict[str, Any], panel: dict[str, Any]) -> None:
    del board
    assert panel["title"]
    assert panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in {"s", "bytes", "Bps", "ops", "rowsps", "percentunit", "none", "short"}
    assert defaults["noValue"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]
    if panel["type"] == "timeseries":
        assert panel["options"]["legend"]["showLegend"]
    if panel["type"] == "heatmap":
        assert panel["options"]["yAxis"]["unit"] in {"s", "bytes"}
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert target["datasource"] == panel["datasource"]


@each_panel
def test_counters_are_rated_over_grafanas_interval(board: dict[str, Any], panel: dict[str, Any]) -> None:
    del board
    for target in panel["targets"]:
        windows = set(re.findall(r"\[(.*?)\]", target["expr"]))
        # What adds up the time shown is asked for once, at its end.
        assert windows <= ({"$__range", "$__rate_interval"} if target["instant"] else {"$__rate_interval"})
        for found in selected(substituted(target["expr"])):
            if found.name.endswith(("_total", *HISTOGRAM_ENDS)):
                name = re.escape(found.name)
                assert len(re.findall(rf"(?:rate|increase)\({name}\{{", target["expr"])) == len(
                    re.findall(rf"{name}\{{", target["expr"])
                )


@each_board
def test_every_query_is_narrowed_by_job_and_instance(board: dict[str, Any]) -> None:
    for panel in board["panels"]:
        for target in panel.get("targets") or ():
            for found in re.finditer(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{(.*?)\}", target["expr"]):
                name, inside = found.groups()
                # An alert sums over workers; a recording rule, with a colon in its name, over instances.
                if name == "ALERTS":
                    continue
                assert 'job=~"$job"' in inside
                assert ":" in name or 'instance=~"$instance"' in inside


@each_board
def test_board_is_as_the_linter_wants_it(board: dict[str, Any]) -> None:
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "pipeline", "agent", "backend"]
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["label"] == "Data source"
    for name in ("job", "instance", "pipeline", "agent", "backend"):
        variable = variables[name]
        assert variable["type"] == "query"
        assert variable["label"] == name.capitalize()
        assert variable["datasource"]["uid"] == "${datasource}"
        assert variable["multi"]
        assert variable["includeAll"]
        assert variable["allValue"] == ".+"
        assert variable["refresh"] == 2
    assert board["editable"] is False
    assert [each["name"] for each in board["annotations"]["list"]] == ["Firing alerts", "Version changes"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    titles = [panel["title"] for panel in board["panels"] if panel["type"] != "row"]
    assert len(set(titles)) == len(titles)


@each_board
def test_panels_fill_the_grid_and_overlap_nowhere(board: dict[str, Any]) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        grid = panel["gridPos"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]
    bottom = 1 + max(y for _, y in taken)
    assert set(taken) == {(x, y) for x in range(COLUMNS) for y in range(bottom)}


def test_the_overview_fits_a_screen() -> None:
    board = BOARDS[f"{Dashboard.OVERVIEW}.json"]
    # 1080 pixels less Grafana's own bars and a browser's, at 38 pixels for a row of the grid.
    assert max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) <= 24


@each_panel
def test_links_lead_somewhere(board: dict[str, Any], panel: dict[str, Any]) -> None:
    del board
    alerts = {
        rule["alert"]
        for text in rule_files(Settings()).values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    for link in panel["fieldConfig"]["defaults"].get("links") or ():
        if link["url"].startswith("/d/"):
            assert link["url"][3:].partition("?")[0] in set(Dashboard)
        else:
            assert link["url"].removeprefix(Settings().runbook_url + "/").removesuffix(".md") in alerts


def test_latency_panels_show_exemplars() -> None:
    for board in BOARDS.values():
        for panel in board["panels"]:
            if "activation_duration" in json.dumps(panel) or "flush_duration" in json.dumps(panel):
                assert any(target["exemplar"] for target in panel["targets"]), panel["title"]


def test_settings_reach_the_dashboards() -> None:
    made = dashboards(
        Settings(pipeline="flights|hotels", runbook_url="https://wiki.example.org/r", flush_latency_s=0.25)
    )
    stores = json.loads(made["beam-agents-stores.json"])
    variables = {each["name"]: each for each in stores["templating"]["list"]}
    assert variables["pipeline"]["allValue"] == "flights|hotels"
    assert variables["pipeline"]["regex"] == "/^(?:flights|hotels)$/"
    links = [
        link["url"]
        for panel in stores["panels"]
        for link in (panel.get("fieldConfig") or {}).get("defaults", {}).get("links") or ()
    ]
    assert "https://wiki.example.org/r/BeamAgentsStoreDown.md" in links
    latency = next(panel for panel in stores["panels"] if panel["title"] == "Flush latency")
    assert latency["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == 0.25


def test_provisioning_names_what_is_there() -> None:
    sources = yaml.safe_load((shipped("grafana") / "provisioning/datasources/beam-agents.yaml").read_text())
    uids = {source["uid"] for source in sources["datasources"]}
    for source in sources["datasources"]:
        for target in (
            source["jsonData"].get("exemplarTraceIdDestinations", ()) if "jsonData" in source else ()
        ):
            assert target["datasourceUid"] in uids


def test_compose_services_find_each_other_and_the_files() -> None:
    services = yaml.safe_load((shipped("compose") / "compose.yaml").read_text())["services"]
    flags = {
        name: dict(flag.removeprefix("--").split("=", 1) for flag in services[name]["command"])
        for name in ("prometheus", "alertmanager")
    }
    environment = services["grafana"]["environment"]
    listening = {
        *(each["web.listen-address"] for each in flags.values()),
        f"{environment['GF_SERVER_HTTP_ADDR']}:{environment['GF_SERVER_HTTP_PORT']}",
        *(port.rpartition(":")[0] for port in services["traces"]["ports"]),
    }
    # Open to this host alone, and to all that is on it.
    assert {address.partition(":")[0] for address in listening} == {"127.0.0.1"}
    assert all(services[name]["network_mode"] == "host" for name in ("prometheus", "alertmanager", "grafana"))

    mounted: dict[str, dict[str, str]] = {}
    for name, service in services.items():
        pairs = (volume.removesuffix(":ro").rsplit(":", 1) for volume in service.get("volumes", ()))
        mounted[name] = {inside: outside for outside, inside in pairs}
    for name, each in flags.items():
        file = pathlib.PurePosixPath(each["config.file"])
        assert (shipped("compose") / mounted[name][str(file.parent)] / file.name).is_file()
    home = pathlib.PurePosixPath(environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    dashboards_folder = shipped("compose") / mounted["grafana"][str(home.parent)]
    assert (dashboards_folder / home.name).is_file()
    providers = yaml.safe_load((shipped("grafana") / "provisioning/dashboards/beam-agents.yaml").read_text())
    assert providers["providers"][0]["options"]["path"] == str(home.parent)
    provisioning = shipped("compose") / mounted["grafana"]["/etc/grafana/provisioning"]
    assert (provisioning / "datasources/beam-agents.yaml").is_file()

    scraping = yaml.safe_load((shipped("prometheus") / "prometheus.example.yml").read_text())
    (job,) = scraping["scrape_configs"]
    (targets,) = job["file_sd_configs"][0]["files"]
    assert str(pathlib.PurePosixPath(targets).parent) in mounted["prometheus"]
    (told,) = scraping["alerting"]["alertmanagers"][0]["static_configs"]
    assert set(told["targets"]) <= listening
    sources = yaml.safe_load((shipped("grafana") / "provisioning/datasources/beam-agents.yaml").read_text())
    assert {each["url"].removeprefix("http://") for each in sources["datasources"]} <= listening
