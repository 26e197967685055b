"""`python -m stethoscope`: the same command as `stethoscope`."""

from __future__ import annotations

import sys

from stethoscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
