"""Arrays in, one fixed-width row of statistics each out; torch only when handed a tensor."""

from stethoscope.kernels.captured import Slots
from stethoscope.kernels.columns import COLUMNS, NUM_COLUMNS, Table, empty_rows, merge, stat
from stethoscope.kernels.histogram import NUM_BINS, Percentiles, percentiles
from stethoscope.kernels.measuring import backend, can_measure, measure, measure_async, prepare, uses_devices
from stethoscope.kernels.pending import Extras, Measured, Pending
from stethoscope.kernels.reference import UnsupportedArrayError
from stethoscope.kernels.sampling import Sample, Snapshot
from stethoscope.kernels.sketch import SKETCH_WIDTH

__all__ = [
    "COLUMNS",
    "NUM_BINS",
    "NUM_COLUMNS",
    "SKETCH_WIDTH",
    "Extras",
    "Measured",
    "Pending",
    "Percentiles",
    "Sample",
    "Slots",
    "Snapshot",
    "Table",
    "UnsupportedArrayError",
    "backend",
    "can_measure",
    "empty_rows",
    "measure",
    "measure_async",
    "merge",
    "percentiles",
    "prepare",
    "stat",
    "uses_devices",
]
