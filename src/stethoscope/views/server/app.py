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

from stethoscope.views.common.open_run import OpenRun, both_locks
from stethoscope.views.pagedata import compare, overview
from stethoscope.views.pagedata.directions import Angles
from stethoscope.views.pagedata.query import BadQuestionError, QueryParams
from stethoscope.views.pagedata.runlist import RunsData
from stethoscope.views.pagedata.screens import Answer, questions
from stethoscope.views.server.access import AccessMiddleware, AccessPolicy
from stethoscope.views.server.answers import error_answer, json_answer
from stethoscope.views.server.run_cache import RunCache
from stethoscope.views.server.stream import Streams

WEB: Final = Path(__file__).parents[1] / "web"
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
QUESTIONS: Final = {f"/{name}" if name else "": answer for name, answer in questions().items()}
MAX_WORKERS: Final = 4
MAX_SECONDS: Final = 30.0
"""A question that takes longer is answered with what to do instead; its thread is left to end by itself."""


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

        def work() -> RunsData:
            return {"base": self.cache.base.name or "runs", "runs": self.cache.rows()}

        return await self.answered(request, work)

    def _both_runs(self, query: QueryParams) -> tuple[OpenRun, OpenRun]:
        return self.cache.open(query.words("a", 64)), self.cache.open(query.words("b", 64))

    async def compared(self, request: Request) -> Response:
        """Two runs side by side."""
        query = QueryParams(dict(request.query_params))

        def work() -> compare.CompareData:
            a, b = self._both_runs(query)
            with both_locks(a, b):
                kind, view = query.kind(overview.heat_kind(a)), query.view(compare.common_span(a, b))
                return compare.compare_data(a, b, kind, query.stat(), view, query.rows())

        return await self.answered(request, work)

    async def angled(self, request: Request) -> Response:
        """The angles between two runs."""
        query = QueryParams(dict(request.query_params))

        def work() -> Angles:
            a, b = self._both_runs(query)
            with both_locks(a, b):
                kind, view = query.kind(overview.heat_kind(a)), query.view(compare.common_span(a, b))
            return compare.angles_data(a, b, kind, view[:2], query.rows(), is_unwanted=self._closing.is_set)

        return await self.answered(request, work)

    def question(self, answer: Answer) -> Callable[[Request], Any]:
        """A route that answers one question about one run."""

        async def handle(request: Request) -> Response:
            query = QueryParams(dict(request.query_params))

            def work() -> Any:
                viewed = self.cache.open(request.path_params["run"])
                with viewed.lock:
                    return answer(viewed, query)

            return await self.answered(request, work)

        return handle


def build(base: Path, policy: AccessPolicy) -> Any:
    """The application behind its access policy."""
    page = Page(base)
    routes = [Route(path, _serve_file(name, kind), methods=["GET"]) for path, (name, kind) in FILES.items()]
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


def _serve_file(name: str, kind: str) -> Callable[[Request], Any]:
    async def serve(_: Request) -> Response:
        return FileResponse(WEB / name, media_type=kind)

    return serve
