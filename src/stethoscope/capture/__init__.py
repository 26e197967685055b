"""When and where to look: seams, taps, schedule, ledger, and the Watcher that joins them."""

from stethoscope.capture.watcher import Watcher

__all__ = ["Watcher"]
