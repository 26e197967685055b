"""The words everyone shares: sites, series, findings, severities and errors; and what passes from capture to detect.

Ground floor: imports nothing of ours and no torch. Everything here is plain data that can be written to JSON and read back
equal. Events are in `record.events`, the metrics that we record ourselves in `record.metrics`.
"""

from stethoscope.record.drawn import (
    DRAWING,
    Drawn,
)
from stethoscope.record.errors import (
    ConfigError,
    MissingExtraError,
    RunDamagedError,
    RunError,
    RunFormatError,
    RunNotFoundError,
    StethoscopeError,
    StethoscopeWarning,
    StopTraining,
    WatchError,
)
from stethoscope.record.findings import (
    Evidence,
    Finding,
)
from stethoscope.record.kinds import (
    OUTPUT_KINDS,
    ROOT_NAME,
    Kind,
    Severity,
)
from stethoscope.record.series import (
    FloatArray,
    IntArray,
    Record,
    Series,
    SeriesMap,
)
from stethoscope.record.sites import (
    Site,
    SiteInfo,
    select,
)
from stethoscope.record.text import (
    BIDI_CONTROLS,
    did_you_mean,
    name_list,
    plural,
    printable,
    spreadsheet_text,
)

__all__ = [
    "BIDI_CONTROLS",
    "DRAWING",
    "OUTPUT_KINDS",
    "ROOT_NAME",
    "ConfigError",
    "Drawn",
    "Evidence",
    "Finding",
    "FloatArray",
    "IntArray",
    "Kind",
    "MissingExtraError",
    "Record",
    "RunDamagedError",
    "RunError",
    "RunFormatError",
    "RunNotFoundError",
    "Series",
    "SeriesMap",
    "Severity",
    "Site",
    "SiteInfo",
    "StethoscopeError",
    "StethoscopeWarning",
    "StopTraining",
    "WatchError",
    "did_you_mean",
    "name_list",
    "plural",
    "printable",
    "select",
    "spreadsheet_text",
]
