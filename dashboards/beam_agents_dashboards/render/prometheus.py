"""Prometheus's HTTP API, as far as dashboards ask it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import httpx

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Prometheus", "PrometheusError", "Series", "shown_url"]

_TIMEOUT_S: Final = 30.0
_URL_LIMIT: Final = 300


class PrometheusError(Exception):
    """Prometheus could not be asked, or refused a query.

    Attributes:
        problem: What is wrong, and where.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: Its labels.
        points: (time in seconds since the Unix epoch, value) pairs.
    """

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Prometheus:
    """A client. It is a context manager.

    Args:
        url: Where Prometheus is: ``http://127.0.0.1:9090``.
    """

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._http = httpx.Client(timeout=_TIMEOUT_S)
        try:
            self._shown = shown_url(self._url)
        except httpx.InvalidURL as error:
            # Without the text: there may be a password in it.
            raise PrometheusError(f"Prometheus's address is no URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def over(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[Series]:
        """Return a query's answer over a time.

        Raises:
            PrometheusError: It did not answer, or refused the query.
        """
        given = {"query": expr, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        return self._ask("query_range", given)

    def at(self, expr: str, at_s: float) -> list[Series]:
        """Return a query's answer at a moment.

        Raises:
            PrometheusError: It did not answer, or refused the query.
        """
        return self._ask("query", {"query": expr, "time": f"{at_s:.3f}"})

    def _ask(self, call: str, given: dict[str, str]) -> list[Series]:
        try:
            # In the body: a query may be longer than an address may.
            answer = self._http.post(f"{self._url}/api/v1/{call}", data=given)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PrometheusError(
                f"{self._shown} does not answer: {type(error).__name__}: {error}"
            ) from error
        try:
            body = answer.json()
        except ValueError as error:
            raise PrometheusError(
                f"{self._shown} answers {answer.status_code} and no JSON: is it Prometheus?"
            ) from error
        if not isinstance(body, dict) or not body.keys() >= {"status"}:
            raise PrometheusError(f"{self._shown} answers with other JSON than Prometheus does")
        if body["status"] != "success":
            told = str(body.get("error", answer.reason_phrase))[:_URL_LIMIT]
            raise PrometheusError(f"{self._shown} refuses the query: {told}")
        return _series(body["data"])


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment.

    Raises:
        httpx.InvalidURL: It is none.
    """
    return str(httpx.URL(url).copy_with(username=None, password=None, query=None, fragment=None))


def _series(data: dict[str, object]) -> list[Series]:
    result = data["result"]
    if not isinstance(result, list):
        raise PrometheusError(f"Prometheus answers with {type(result).__name__} where a list should be")
    if data["resultType"] == "scalar":
        return [Series({}, [_point(result)])]
    return [
        Series(each["metric"], [_point(pair) for pair in each.get("values") or [each["value"]]])
        for each in result
    ]


def _point(pair: list[object]) -> tuple[float, float]:
    at_s, value = pair
    return float(str(at_s)), float(str(value))
