"""Where alerts go: a sink is any callable that takes an Alert. Terminal, Python logging, the run, a webhook.

A sink that fails never reaches training: the caller counts it. The webhook's address comes from the user's
own config, must be http(s), is never redirected, and is called from a thread of its own.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from stethoscope.record import ConfigError, Severity, events, printable
from stethoscope.record.wire import EventBody

SCHEMA: Final = 1
LEVELS: Final = {
    Severity.INFO: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.CRITICAL: logging.CRITICAL,
}

logger = logging.getLogger("stethoscope.alerts")
logger.addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Alert:
    """What a hook reports: a message and its severity."""

    message: str
    severity: Severity
    hook: str
    layer: str = ""
    step: int | None = None
    time: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "schema": SCHEMA,
            "message": self.message,
            "severity": str(self.severity),
            "hook": self.hook,
            "layer": self.layer,
            "step": self.step,
            "time": self.time,
        }

    def __str__(self) -> str:
        where = "".join(
            [
                f" at step {self.step:,}" if self.step is not None else "",
                f" in {self.layer}" if self.layer else "",
            ]
        )
        return printable(f"{self.severity}{where}: {self.message} [{self.hook}]", limit=2000)


Sink = Callable[[Alert], None]


class TerminalSink:
    """One line on standard error, control characters escaped."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, alert: Alert) -> None:
        """Writes the alert."""
        stream = self._stream or sys.stderr
        stream.write(f"stethoscope: {alert}\n")
        stream.flush()


class LoggingSink:
    """Python's logging, logger `stethoscope.alerts`."""

    def __call__(self, alert: Alert) -> None:
        """Logs the alert at the level of its severity."""
        logger.log(LEVELS[alert.severity], "%s", alert)


class EventSink:
    """The run: hands the alert, as an event, to a writer's `tell(step, said)`."""

    def __init__(self, tell: Callable[[int, EventBody], None]) -> None:
        self._tell = tell

    def __call__(self, alert: Alert) -> None:
        """Records the alert."""
        self._tell(alert.step or 0, events.Alert(**alert.to_json()))


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to be sent elsewhere: the address is the user's choice, not the server's."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """No redirect is followed; urllib then raises the HTTP error."""
        return


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False


class WebhookSink:
    """POSTs alerts as JSON from a thread of its own; what does not fit the queue is dropped and counted."""

    def __init__(self, url: str, *, timeout_s: float = 3.0, max_queued: int = 64) -> None:
        if not _is_address(url):
            raise ConfigError("a webhook needs an http or https address", where=url)
        self.num_sent = self.num_failed = self.num_dropped = 0
        self._url, self._timeout_s = url, timeout_s
        self._queue: queue.Queue[Alert | None] = queue.Queue(max_queued)
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def __call__(self, alert: Alert) -> None:
        """Queues the alert; returns at once."""
        if os.getpid() != self._pid:  # a forked worker: the thread stayed behind
            return
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stethoscope-webhook", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.num_dropped += 1

    def close(self, timeout_s: float = 5.0) -> None:
        """Sends what is queued, then ends the thread; gives up after `timeout_s`."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return
        try:
            self._queue.put(None, timeout=timeout_s)
        except queue.Full:
            return
        thread.join(timeout_s)
        self._thread = None

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            try:
                self._post_alert(alert)
                self.num_sent += 1
            except Exception as error:  # whatever answers there: http.client has errors that are no OSError
                self.num_failed += 1
                # Once: an address that does not answer is worth a word, and no more than one.
                level = logging.WARNING if self.num_failed == 1 else logging.DEBUG
                logger.log(level, "an alert did not reach the webhook: %s", error)

    def _post_alert(self, alert: Alert) -> None:
        body = json.dumps(alert.to_json(), allow_nan=False).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
        with self._opener.open(request, timeout=self._timeout_s):
            return
