"""Drawing dashboards without Grafana: from a real Prometheus with two hours of a synthetic outage."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from beam_agents.cli.app import app
from beam_agents.cli.dashboards_render import parse_moment
from beam_agents.signals import catalogue
from beam_agents_dashboards.check import problems
from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.grafana_check import dashboard_queries, panels_without_data
from beam_agents_dashboards.render import Prometheus, PrometheusError, find_browser, render, window
from beam_agents_dashboards.render.body import DRAWN
from beam_agents_dashboards.render.model import read_board
from beam_agents_dashboards.render.page import draw_page
from beam_agents_dashboards.render.tables import make_table
from beam_agents_dashboards.render.units import shown
from beam_agents_dashboards.render.variables import filled
from beam_agents_dashboards.settings import Settings
from tests.dashboards import synthetic
from tests.servers import prometheus as servers
from tests.servers.process import absent, free_port

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("dashboards")

TEXTS = dashboards(Settings())
BOARDS = [read_board(json.loads(text)) for text in TEXTS.values()]
END_S = int(time.time()) // 60 * 60 - 600


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Prometheus]:
    """A server with the synthetic samples."""
    if shutil.which("promtool") is None:
        absent("promtool (Debian's package prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    synthetic.write_blocks(folder, END_S)
    with servers.running(folder, "global: {scrape_interval: 30s}\n") as server:
        yield server


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Prometheus]:
    """A server without any."""
    with servers.running(tmp_path_factory.mktemp("empty"), "global: {scrape_interval: 30s}\n") as server:
        yield server


def whole() -> Any:
    return window(END_S - 7_200, END_S, 30)


def page(board_json: str, url: str) -> str:
    with Prometheus(url) as prometheus:
        return draw_page(read_board(json.loads(board_json)), prometheus, whole(), url)[0]


def test_samples_have_every_metric_of_the_catalogue() -> None:
    assert synthetic.everything() == set(catalogue.METRICS)


def test_queries_are_of_the_catalogue() -> None:
    assert [each for each in dashboard_queries(BOARDS) if problems(each.expression)] == []


def test_every_panel_has_data(past: servers.Prometheus) -> None:
    with Prometheus(past.url) as prometheus:
        assert list(panels_without_data(BOARDS, prometheus, whole())) == []


def test_what_has_no_data_is_told_with_the_reason(empty: servers.Prometheus) -> None:
    with Prometheus(empty.url) as prometheus:
        found = {each.place: each.why for each in panels_without_data(BOARDS, prometheus, whole())}
    # A sum over nothing or'ed with a constant would be health where there are no data.
    asked = {f"{board.title}: {panel.title}" for board in BOARDS for panel in board.panels if panel.targets}
    assert set(found) == asked
    assert "beam_agents_store_up" in found["beam-agents / Overview: Stores down"]
    assert "are the rules loaded" in found["beam-agents / Overview: Error budget burn"]


@pytest.mark.parametrize("name", TEXTS)
def test_page_shows_every_panel(name: str, past: servers.Prometheus) -> None:
    html = page(TEXTS[name], past.url)
    for panel in json.loads(TEXTS[name])["panels"]:
        assert f">{panel['title']}</h2>" in html
    assert 'class="note' not in html
    # Nothing is loaded from elsewhere.
    assert not re.search(r"<(?:script|link|iframe)|src=\"http|url\(http|@import", html)
    assert "BeamAgentsStoreDown" in html


def test_page_without_data_says_so(empty: servers.Prometheus) -> None:
    html = page(TEXTS["beam-agents-overview.json"], empty.url)
    assert html.count('class="note none"') == 17
    assert "Rules not loaded" in html
    assert "No store" in html
    assert "<path" not in html


def test_what_is_not_drawn_says_so_in_its_place(past: servers.Prometheus) -> None:
    board = json.loads(TEXTS["beam-agents-overview.json"])
    board["panels"][0]["type"] = "geomap"
    board["panels"][1]["targets"][0]["expr"] = "sum(("
    board["panels"][2] = {
        **board["panels"][2], "type": "text", "options": {"content": "**Mind** <script>alert(1)</script>"}
    }  # fmt: skip
    html = page(json.dumps(board), past.url)
    assert "Panels of type geomap are not drawn here." in html
    assert "refuses the query" in html
    assert "<strong>Mind</strong>" in html
    assert "<script>" not in html


def test_labels_and_titles_are_escaped(past: servers.Prometheus) -> None:
    board = json.loads(TEXTS["beam-agents-overview.json"])
    for panel in board["panels"]:
        panel["title"] = "<b onload=x>"
    board["panels"][8]["targets"] = [
        {**board["panels"][8]["targets"][0], "legendFormat": "<img src=x>", "expr": "up"}
    ]
    html = page(json.dumps(board), past.url)
    assert "<b onload" not in html
    assert "<img src=x" not in html
    assert "&lt;img src=x&gt;" in html


def test_a_password_in_the_address_is_not_on_the_page(past: servers.Prometheus) -> None:
    html = page(TEXTS["beam-agents-workers.json"], past.url.replace("http://", "http://me:secret@"))
    assert "secret" not in html


def test_the_same_data_give_the_same_page(past: servers.Prometheus) -> None:
    text = TEXTS["beam-agents-stores.json"]
    assert page(text, past.url) == page(text, past.url)


def test_pictures_are_of_the_pages_size(past: servers.Prometheus, tmp_path: pathlib.Path) -> None:
    browser = find_browser()
    if browser is None:
        absent("chromium (Debian's package of that name)")
    name = "beam-agents-overview.json"
    written = list(render({name: TEXTS[name]}, past.url, tmp_path, whole(), browser))
    assert [path.name for path in written] == ["beam-agents-overview.html", "beam-agents-overview.png"]
    head = written[1].read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    assert width == 1920
    # One screen.
    assert 900 < height <= 1080


def test_all_that_fires_is_to_be_seen(past: servers.Prometheus, tmp_path: pathlib.Path) -> None:
    browser = find_browser()
    if browser is None:
        absent("chromium (Debian's package of that name)")
    board = json.loads(TEXTS["beam-agents-overview.json"])
    (alerts, *_) = board["annotations"]["list"]
    # What fires when Redis is down: a little more than one line.
    firing = {
        "BeamAgentsStoreDown": "page redis",
        "BeamAgentsTimerBundlesFailing": "page flights aircraft",
        "BeamAgentsExpireTimersWedged": "page flights aircraft redis",
        "BeamAgentsActivationErrorBudgetBurn": "page flights airport",
    }
    board["annotations"]["list"] = [
        {**alerts, "target": {"expr": "vector(1)"}, "titleFormat": title, "textFormat": text}
        for title, text in firing.items()
    ]
    drawn = page(json.dumps(board), past.url)
    assert drawn.count("<li><i ") == 4
    script = (
        "<script>const m = document.querySelector('.marks'); document.title = m.scrollHeight - m.clientHeight"
    )
    (tmp_path / "page.html").write_text(drawn.replace("</body>", f"{script}</script></body>"))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
         "--window-size=1920,1080", "--dump-dom", (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "<title>0</title>" in done.stdout


def test_command_writes_pages(past: servers.Prometheus, tmp_path: pathlib.Path) -> None:
    done = CliRunner().invoke(
        app,
        ["dashboards", "render", "--prometheus", past.url, "--out", str(tmp_path / "out"), "--from", "2h",
         "--scrape-interval", "30s", "--no-pictures"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        name.replace(".json", ".html") for name in TEXTS
    }


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--prometheus", "http://127.0.0.1:{port}"), 1, "does not answer"),
        (("--prometheus", "nonsense"), 1, "nonsense"),
        (("--prometheus", "http://127.0.0.1:{port}", "--from", "soon"), 2, "is no time"),
        (("--prometheus", "http://127.0.0.1:{port}", "--from", "1h", "--to", "2h"), 2, "before --to"),
        (("--prometheus", "http://127.0.0.1:{port}", "--scrape-interval", "0s"), 2, "more than 0"),
        (("--prometheus", "http://127.0.0.1:{port}", "--dashboards", "{folder}"), 2, "no dashboard"),
    ],
)
def test_command_tells_what_is_wrong(
    arguments: tuple[str, ...], code: int, told: str, tmp_path: pathlib.Path
) -> None:
    port = free_port()
    given = [each.format(port=port, folder=tmp_path) for each in arguments]
    done = CliRunner().invoke(
        app, ["dashboards", "render", "--no-pictures", "--out", str(tmp_path / "out"), *given]
    )
    assert done.exit_code == code, done.output
    assert told in " ".join(done.output.replace("│", " ").split())


def test_check_tells_which_panels_are_empty(empty: servers.Prometheus) -> None:
    done = CliRunner().invoke(app, ["dashboards", "check", "--only", "grafana", "--prometheus", empty.url])
    assert done.exit_code == 0, done.output
    assert "queries: all are sound" in done.output
    assert "panels have no data in the last hour:" in done.output
    assert "beam-agents / Overview: Stores down: no scraped worker has told" in done.output


def test_moments() -> None:
    assert parse_moment("90s", 1_000.0) == 910.0
    assert parse_moment("1970-01-01T00:01:00", 0.0) == 60.0
    assert parse_moment("1970-01-01T01:01:00+01:00", 0.0) == 60.0
    with pytest.raises(ValueError, match="is no time"):
        parse_moment("yesterday", 0.0)


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "text"),
    [
        (0.0, "s", None, "0 s"),
        (0.00042, "s", None, "420 µs"),
        (0.25, "s", None, "250 ms"),
        (90.0, "s", 0, "1.5 min"),
        (86_400.0, "s", None, "1 d"),
        (1_536.0, "bytes", None, "1.5 KiB"),
        (999.0, "bytes", None, "999 B"),
        (2_097_152.0, "Bps", None, "2 MiB/s"),
        (0.9995, "percentunit", None, "100 %"),
        (0.5, "percentunit", None, "50 %"),
        (12_345.0, "short", None, "12.3 K"),
        (0.3, "short", 0, "0.3"),
        (3.0, "ops", None, "3 ops/s"),
        (7.0, "parsecs", None, "7 parsecs"),
        (-4_000.0, "short", None, "-4 K"),
        (math.nan, "s", None, "-"),
        (math.inf, "none", None, "∞"),
    ],
)
def test_numbers_are_shown_as_people_read_them(
    value: float, unit: str, decimals: int | None, text: str
) -> None:
    assert shown(value, unit, decimals) == text


def test_variables_are_filled_in() -> None:
    found = filled('rate(a{job=~"$job", x="$other"}[$__rate_interval]) + b[$__range]', {"job": ".+"}, whole())
    assert found == 'rate(a{job=~".+", x="$other"}[120s]) + b[7200s]'


def test_steps_are_those_of_grafana() -> None:
    narrow = window(1_000.0, 1_060.0, 15.0)
    assert (narrow.step_s, narrow.rate_s) == (15.0, 60.0)
    wide = window(0.0, 7 * 86_400.0, 15.0)
    assert (wide.step_s, wide.rate_s) == (1_800.0, 1_815.0)
    assert wide.end_s % wide.step_s == 0


def test_tables_merge_queries_by_label(past: servers.Prometheus) -> None:
    board = next(board for board in BOARDS if board.uid == "beam-agents-stores")
    panel = next(panel for panel in board.panels if panel.kind == "table")
    with Prometheus(past.url) as prometheus:
        answers = {
            target.ref: prometheus.at(filled(target.expr, board.variables, whole()), whole().end_s)
            for target in panel.targets
        }
    table = make_table(panel, answers)
    assert table.heads == (
        "Backend",
        "Workers up",
        "Workers down",
        "Last success",
        "p99 flush",
        "Failed flushes",
    )
    assert [[cell.text for cell in row[:3]] for row in table.rows] == [
        ["postgresql", "2", "0"],
        ["redis", "2", "0"],
    ]
    assert table.rows[0][5].text == "0"


def test_prometheus_that_is_none_is_told(tmp_path: pathlib.Path) -> None:
    with Prometheus(f"http://127.0.0.1:{free_port()}") as prometheus, pytest.raises(PrometheusError):
        list(render(TEXTS, "http://127.0.0.1:1", tmp_path, whole(), None))
    del prometheus


def test_all_kinds_of_panel_in_use_are_drawn() -> None:
    assert {panel.kind for board in BOARDS for panel in board.panels} - {"row"} <= set(DRAWN)
