"""Writes rows faster than a hanging disk takes them, then takes all memory there is and is killed as the kernel would do it."""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

import numpy as np

from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter

given = json.loads(sys.argv[1])
num_sites = given["num_sites"]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


writer = RunWriter.create(Path(given["folder"]), {})
writer.sites([SiteInfo(Site(f"layer.{n}", Kind.GRADIENT, "weight"), (4,), "float32", 4) for n in range(num_sites)])
table = np.random.default_rng(0).normal(size=(num_sites, 17))
for step in range(given["kept_steps"]):
    writer.rows(step, np.arange(num_sites), table)
if writer.flush():
    print("kept", flush=True)
time.sleep(0.2)
before, first = resident_bytes(), given["kept_steps"]
for step in range(first, first + 1200):  # 17 columns of 8 bytes: 326 MB, five times what the queue may hold
    writer.rows(step, np.arange(num_sites), table)
print("grown", resident_bytes() - before, flush=True)
while not Path("go").exists():
    time.sleep(0.005)
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
hoard = []
try:
    while True:
        hoard.append(bytearray(16 << 20))
        writer.rows(step, np.arange(num_sites), table)
        step += 1
except MemoryError:
    os.kill(os.getpid(), signal.SIGKILL)
