"""A detector that makes the companion late, and nobody else: it waits for a file before it looks at the first steps."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from stethoscope.analyse.span import Span
from stethoscope.detect.detector import Code, Detector
from stethoscope.record import Finding

GO = "SLOW_DETECTOR_WAITS_FOR"
MOST_SECONDS = 300.0


class Slow(Detector):
    codes: ClassVar[tuple[Code, ...]] = (Code("slowness"),)

    def observe(self, span: Span) -> None:
        go = Path(os.environ[GO])
        until = time.monotonic() + MOST_SECONDS
        while os.getpid() != int(go.with_suffix(".trains").read_text()) and not go.exists():
            assert time.monotonic() < until
            time.sleep(0.02)

    def findings(self) -> list[Finding]:
        return []
