"""The Run folder: append, seal, read, thin. Imports no torch; pyarrow only where a sealed part is touched.

writer = RunWriter.create(new_run_folder(name="gpt"), {"seed": 1})
run = open_run(latest_run())
"""

from stethoscope.store.downsample.reading import BucketMatrix
from stethoscope.store.downsample.thin import ThinReport, thin
from stethoscope.store.findings import FindingsWriter
from stethoscope.store.frame_file import Problem
from stethoscope.store.inside import folder_bytes
from stethoscope.store.layout import Block, Matrix
from stethoscope.store.locate import base_folder, find_runs, latest_run, new_run_folder
from stethoscope.store.pieces import Event
from stethoscope.store.reader import Run, open_run
from stethoscope.store.seal import SEAL_BYTES, SealReport, seal
from stethoscope.store.starts import Start
from stethoscope.store.writer import RunWriter

__all__ = [
    "SEAL_BYTES",
    "Block",
    "BucketMatrix",
    "Event",
    "FindingsWriter",
    "Matrix",
    "Problem",
    "Run",
    "RunWriter",
    "SealReport",
    "Start",
    "ThinReport",
    "base_folder",
    "find_runs",
    "folder_bytes",
    "latest_run",
    "new_run_folder",
    "open_run",
    "seal",
    "thin",
]
