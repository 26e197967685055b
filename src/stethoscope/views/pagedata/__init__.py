"""What the page and the report draw: a Run as JSON values, one function a screen.

The one intermediate form between the store and everything that runs in a browser. Torch-free and read-only;
bins begin at powers of two and show the worst thing in them; rows and bytes have caps. Nothing here knows of
sockets or markup.
"""

from stethoscope.views.common.open_run import OpenRun

__all__ = ["OpenRun"]
