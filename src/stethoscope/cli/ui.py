"""`stethoscope ui`: the live page, for this machine and its user alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stethoscope.cli.errors import UsageError

if TYPE_CHECKING:
    from stethoscope.views.server.access import AccessPolicy

DEFAULT_PORT = 7654
PORTS_TRIED = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which runs, and where to listen."""
    parser.add_argument("dir", nargs="?", metavar="DIR", help="a folder of runs, or one run; default: the runs here")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; default: 127.0.0.1, this machine only")
    parser.add_argument("--port", type=int, help=f"default: {DEFAULT_PORT}, or the next free one")
    parser.add_argument("--no-browser", action="store_true", help="print the link, open nothing")


def run(args: argparse.Namespace) -> int:
    """Serves until interrupted."""
    from stethoscope.views.server import make_app, make_server
    from stethoscope.views.server.access import AccessPolicy

    base = chosen_base(args.dir)
    listener = listen(args.host, args.port)
    port = int(listener.getsockname()[1])
    policy = AccessPolicy.at(args.host, port)
    server = make_server(make_app(base, policy))
    announce(args, base, policy)
    with contextlib.suppress(OSError, AttributeError):
        os.nice(5)  # a training on the same machine goes first
    with contextlib.suppress(KeyboardInterrupt), listener:
        server.run(sockets=[listener])
    return 0


def chosen_base(word: str | None) -> Path:
    """The folder of runs: what was named, else the runs here; a run named by its id stands alone."""
    from stethoscope.cli.choose import choose_path
    from stethoscope.store.locate import base_folder

    if word is None:
        return base_folder()
    path = Path(word)
    return path if path.is_dir() else choose_path(word)


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens; the default port may be taken, one that was asked for may not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    tried = [port] if port is not None else [*range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED), 0]
    trouble: OSError | None = None
    for one in tried:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, one))
            listener.listen(128)
        except (OSError, OverflowError) as error:
            listener.close()
            trouble = error if isinstance(error, OSError) else OSError(str(error))
            continue
        return listener
    why = trouble.strerror if trouble is not None and trouble.strerror else str(trouble)
    raise UsageError(
        f"Cannot listen there ({why})",
        where=f"{host}:{port or DEFAULT_PORT}",
        do="Choose another: --port 0 takes any free one",
    )


def announce(args: argparse.Namespace, base: Path, policy: AccessPolicy) -> None:
    """Prints the link with its token, and opens it where a browser can be."""
    from stethoscope.record import plural
    from stethoscope.store import find_runs
    from stethoscope.views.server.access import is_loopback

    shown = "127.0.0.1" if args.host in ("0.0.0.0", "::", "") else args.host  # noqa: S104
    link = f"http://{f'[{shown}]' if ':' in shown else shown}:{policy.port}/?token={policy.token}"
    sys.stdout.write(
        f"stethoscope: {plural(len(find_runs(base)), 'run')} in {base}\n  {link}\n  Only this link opens the page. Ctrl-C ends it.\n"
    )
    if not is_loopback(args.host):
        sys.stdout.write("  Others on the network can reach it too, unencrypted: anyone with the link sees the runs.\n")
    sys.stdout.flush()
    if not args.no_browser:
        threading.Thread(target=_open_browser, args=(link,), daemon=True).start()


def _open_browser(link: str) -> Any:
    with contextlib.suppress(webbrowser.Error, OSError):
        return webbrowser.open(link)
    return None
