"""The routes: the page's own files, and JSON under /api/. All of it behind the access policy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import compare, flow, layer, log, overview
from stethoscope.views.pagedata.heat import BadQuestionError, heat_data, parse_rows
from stethoscope.views.pagedata.ranks import profile_data, ranks_data
from stethoscope.views.server.access import AccessMiddleware, AccessPolicy
from stethoscope.views.server.answers import QueryParams, error_answer, json_answer
from stethoscope.views.server.run_cache import RunCache
from stethoscope.views.server.stream import Streams

WEB: Final = Path(__file__).parents[1] / "web"
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
MAX_WORKERS: Final = 4
MAX_SECONDS: Final = 30.0
"""A question that takes longer is answered with what to do instead; its thread is left to end by itself."""

Answer = Callable[[OpenRun, QueryParams], Any]


def _view(viewed: OpenRun, words: QueryParams) -> tuple[int, int, int]:
    """First and last step and the width in pixels of what is looked at."""
    begin, end = viewed.span
    first, last = words.whole("first", begin), words.whole("last", end)
    if last < first:
        raise BadQuestionError("The last step lies before the first", where=f"{first} to {last}")
    return first, last, words.whole("width", 1000, 1, 4096)


def _series(viewed: OpenRun, words: QueryParams) -> Any:
    extra = tuple(name for name in words.words("extra").split("\n") if name)
    return {"version": viewed.version, "tracks": overview.tracks_data(viewed, *_view(viewed, words), extra)}


def _heatmap(viewed: OpenRun, words: QueryParams) -> Any:
    rows = words.words("rows")
    return heat_data(
        viewed,
        words.kind(overview.heat_kind(viewed)),
        words.stat(),
        _view(viewed, words),
        parse_rows(rows) if rows else None,
        with_tree=words.flag("tree", default=True),
        exact=words.flag("exact"),
    )


def _layer(viewed: OpenRun, words: QueryParams) -> Any:
    return layer.layer_data(viewed, words.words("path"), _view(viewed, words), words.whole("step", -1))


def _flow(viewed: OpenRun, words: QueryParams) -> Any:
    return flow.flow_data(viewed, words.kind(overview.heat_kind(viewed)), _view(viewed, words))


def _profile(viewed: OpenRun, words: QueryParams) -> Any:
    return profile_data(viewed, _view(viewed, words))


QUESTIONS: Final[dict[str, Answer]] = {
    "": lambda viewed, _: overview.run_data(viewed),
    "/minimap": lambda viewed, _: overview.minimap_data(viewed),
    "/events": lambda viewed, _: log.log_data(viewed),
    "/ranks": lambda viewed, _: ranks_data(viewed),
    "/series": _series,
    "/heatmap": _heatmap,
    "/layer": _layer,
    "/flow": _flow,
    "/profile": _profile,
}


class Page:
    """The application's state: the cache of runs, the streams, how many questions run at once."""

    def __init__(self, base: Path) -> None:
        self.cache = RunCache(base)
        self.streams = Streams(self.cache)
        self.limiter: anyio.CapacityLimiter | None = None
        self._closing = threading.Event()

    def close(self) -> None:
        """The server is about to end: streams end at their next look, long work at its next step."""
        self._closing.set()
        self.streams.close()

    async def ask(self, work: Callable[[], Any]) -> Any:
        """The answer, worked out on a thread of a small pool."""
        if self.limiter is None:
            self.limiter = anyio.CapacityLimiter(MAX_WORKERS)
        try:
            with anyio.fail_after(MAX_SECONDS):
                return await anyio.to_thread.run_sync(work, limiter=self.limiter, abandon_on_cancel=True)
        except TimeoutError:
            raise BadQuestionError("That took too long", do="Ask for fewer rows or steps") from None

    async def answered(self, request: Request, work: Callable[[], Any]) -> Response:
        """The answer as JSON, or the error as one."""
        try:
            body = await self.ask(work)
            return await anyio.to_thread.run_sync(json_answer, body, request)
        except Exception as error:  # whatever a run folder holds, the answer is a sentence
            return error_answer(error, request)

    async def runs(self, request: Request) -> Response:
        """The list."""
        cache = self.cache

        def work() -> Any:
            return {"base": cache.base.name or "runs", "runs": cache.rows()}

        return await self.answered(request, work)

    async def compared(self, request: Request) -> Response:
        """Two runs side by side."""
        words = QueryParams(dict(request.query_params))

        def work() -> Any:
            a, b = self.cache.open(words.words("a", 64)), self.cache.open(words.words("b", 64))
            first, second = sorted((a, b), key=id)
            with first.lock, second.lock:
                begin, end = compare.common_span(a, b)
                view = (words.whole("first", begin), words.whole("last", end), words.whole("width", 1000, 1, 4096))
                rows = words.words("rows")
                return compare.compare_data(
                    a, b, words.kind(overview.heat_kind(a)), words.stat(), view, parse_rows(rows) if rows else None
                )

        return await self.answered(request, work)

    async def angled(self, request: Request) -> Response:
        """The angles between two runs."""
        words = QueryParams(dict(request.query_params))

        def work() -> Any:
            a, b = self.cache.open(words.words("a", 64)), self.cache.open(words.words("b", 64))
            first, second = sorted((a, b), key=id)
            with first.lock, second.lock:
                begin, end = compare.common_span(a, b)
                kind = words.kind(overview.heat_kind(a))
            rows = words.words("rows")
            window = (words.whole("first", begin), words.whole("last", end))
            return compare.angles_data(
                a, b, kind, window, parse_rows(rows) if rows else None, is_unwanted=self._closing.is_set
            )

        return await self.answered(request, work)

    def question(self, answer: Answer) -> Callable[[Request], Any]:
        """A route that answers one question about one run."""

        async def handle(request: Request) -> Response:
            words = QueryParams(dict(request.query_params))

            def work() -> Any:
                viewed = self.cache.open(request.path_params["run"])
                with viewed.lock:
                    return answer(viewed, words)

            return await self.answered(request, work)

        return handle


def build(base: Path, policy: AccessPolicy) -> Any:
    """The application behind its access policy."""
    page = Page(base)
    routes = [Route(path, _file(name, kind), methods=["GET"]) for path, (name, kind) in FILES.items()]
    routes += [
        Route("/api/runs", page.runs),
        Route("/api/compare", page.compared),
        Route("/api/compare/angles", page.angled),
    ]
    routes += [Route(f"/api/runs/{{run}}{tail}", page.question(answer)) for tail, answer in QUESTIONS.items()]
    routes += [Route("/api/runs/{run}/stream", page.streams.run), Route("/api/stream", page.streams.list)]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        threading.Thread(target=page.cache.warm_up, name="stethoscope-warm-up", daemon=True).start()
        yield
        page.close()

    return AccessMiddleware(Starlette(routes=routes, lifespan=lifespan), policy, page.close)


def _file(name: str, kind: str) -> Callable[[Request], Any]:
    async def serve(_: Request) -> Response:
        return FileResponse(WEB / name, media_type=kind)

    return serve
