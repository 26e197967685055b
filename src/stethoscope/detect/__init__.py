"""Series into Findings. One mechanism a file, declared whole: a class of `Detector` with its codes is found by a scan."""

from __future__ import annotations

from stethoscope.detect.detection import Detection
from stethoscope.detect.detector import Code, Detector, Reading, Rule

__all__ = ["Code", "Detection", "Detector", "Reading", "Rule"]
