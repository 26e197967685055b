"""The live attachment: `watch()` puts everything around a training and takes it off again."""

from stethoscope.session.report import SessionReport
from stethoscope.session.session import DebugSession
from stethoscope.session.watching import debug_session, watch

__all__ = ["DebugSession", "SessionReport", "debug_session", "watch"]
