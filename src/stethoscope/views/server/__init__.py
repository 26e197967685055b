"""The live page: a read-only server over run folders, for this machine and its user alone.

Promises: nothing is answered without the token, a known Host and no foreign Origin, decided before any routing;
no path of the file system goes in or out; what a client can make us do is bounded in rows, bytes, time and number.
It only reads: the training process never notices it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stethoscope.record import MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

    from stethoscope.views.server.access import AccessPolicy

__all__ = ["make_app", "make_server"]


def make_app(base: Path, policy: AccessPolicy) -> Any:
    """The ASGI application over the runs in a folder."""
    try:
        import starlette  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("starlette and uvicorn", "ui", "The page") from error
    from stethoscope.views.server.app import build

    return build(base, policy)


def make_server(app: Any) -> Any:
    """A server for the application, with bounds on what its clients may keep waiting."""
    try:
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("starlette and uvicorn", "ui", "The page") from error
    from stethoscope.views.server.connections import Server

    return Server(app)
