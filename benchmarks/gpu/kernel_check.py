"""The Triton kernels on a real device: right, without a synchronisation, and how fast.

    PYTHONPATH=src python -m benchmarks.gpu.kernel_check [--sweep]

1. Every case of tests/kernels/triton_cases.py against the reference.
2. `start` and `Sample` under torch's sync debug mode "error".
3. Bandwidth of the core row, and with histogram and sketch, over the tensors of GPT-2 124M and of a 1.3B model,
   against a plain read of as many bytes in the same run. The device is kept busy while calls are queued, so
   that the time is the device's; the host's cost of a call stands beside it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from tests.kernels import triton_cases
from tests.kernels.agreement import assert_rows_agree

from stethoscope import kernels
from stethoscope.kernels import Extras, Sample, launching, reference
from stethoscope.kernels import triton as host
from stethoscope.kernels.pointers import KINDS
from stethoscope.kernels.variants import Variant

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
DEVICE_0 = torch.device("cuda", 0)


@triton.jit
def plain_read(data, out, CHUNK: tl.constexpr):
    position = tl.program_id(0).to(tl.int64) * CHUNK
    x = tl.load(data + position + tl.arange(0, CHUNK))
    tl.store(out + tl.program_id(0), tl.sum(x.to(tl.float32), 0))


def all_variants() -> list[Variant]:
    """Everything there is to compile."""
    found = [Variant("tensor_sketches"), Variant("write_plan")]
    for dtype in KINDS:
        found += [Variant("chunk_sketches", dtype), Variant("gather_values", dtype)]
        for aligned in (False, True):
            found += [Variant("tensor_sums", dtype, aligned, limited) for limited in (False, True)]
            found.append(Variant("chunk_histograms", dtype, aligned))
    return found


def gpt_shapes(layers: int, width: int, vocabulary: int = 50304, context: int = 1024) -> list[tuple[int, ...]]:
    """The weights of a GPT-2 of this size."""
    block: list[tuple[int, ...]] = [
        (width,),
        (width,),
        (3 * width, width),
        (3 * width,),
        (width, width),
        (width,),
        (width,),
        (width,),
        (4 * width, width),
        (4 * width,),
        (width, 4 * width),
        (width,),
    ]
    return [(vocabulary, width), (context, width), *(block * layers), (width,), (width,)]


def device_seconds(work: Callable[[], Any], calls: int = 10) -> tuple[float, float]:
    """Of one call: time on the device, and time of the host to queue it."""
    # As many at a time as will be timed: the first calls allocate pinned memory, which later ones use again.
    kept = [work() for _ in range(calls)]
    torch.cuda.synchronize()
    del kept
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(200_000_000)  # about 0.1 s, in which all calls are queued
    begin.record()
    clock = time.perf_counter()
    kept = [work() for _ in range(calls)]
    queued = time.perf_counter() - clock
    end.record()
    torch.cuda.synchronize()
    del kept
    return begin.elapsed_time(end) / 1e3 / calls, queued / calls


def read_bandwidth(num_bytes: int) -> float:
    """Of a kernel that only reads and adds, bytes a second."""
    chunk = 8192
    data = torch.ones(num_bytes // 2 // chunk * chunk, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty(data.numel() // chunk, device=DEVICE)
    spent, _ = device_seconds(lambda: plain_read[(out.numel(),)](data, out, CHUNK=chunk, num_warps=8))
    return data.nbytes / spent


def check_cases(processes: int = 12) -> int:
    """In several processes, when all that they take was compiled."""
    launching.prepare(DEVICE_0, (), all_variants()).wait(600)
    command = [sys.executable, "-W", "ignore", "-m", triton_cases.__name__, "cuda"]
    started = [
        subprocess.Popen([*command, str(part), str(processes)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        for part in range(processes)
    ]
    told = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started), "a case does not agree"
    return sum(map(int, told))


def check_no_synchronisation() -> None:
    tensors = [torch.randn(1000, 300, device=DEVICE), torch.randn(77, device=DEVICE).bfloat16()]
    sample = Sample(tensors)
    asked = Extras(histogram=True, sketch=True)
    # First what it takes is compiled, then allocators get what they keep, then nothing may wait.
    for turn in ("compiles", "warms", "counts"):
        torch.cuda.set_sync_debug_mode("error" if turn == "counts" else "default")
        try:
            pending = kernels.measure_async(tensors, extras=asked, limits=[1.0, None])
            before = sample.read(tensors)
            tensors[0].add_(1.0)
            change = sample.difference(before, sample.read(tensors))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        tensors[0].sub_(1.0)
        pending.result()
        change.result()
        compile_first(tensors, asked)
    rows = kernels.measure_async(tensors).result().rows
    assert_rows_agree(rows, reference.rows([tensor.cpu() for tensor in tensors]))
    print("no synchronisation in start, Sample.read, Sample.difference")


def compile_first(tensors: list[torch.Tensor], extras: Extras | None = None) -> None:
    """What measuring these takes is compiled beside; here that is waited for."""
    kernels.measure_async(tensors, extras=extras)
    for waiting in launching.preparations():
        waiting.wait()


def speed_of(tensors: list[torch.Tensor], extras: Extras | None) -> tuple[float, float]:
    """Bytes a second, and seconds of the host to queue one call."""
    compile_first(tensors, extras)
    spent, queued = device_seconds(lambda: kernels.measure_async(tensors, extras=extras))
    return sum(tensor.nbytes for tensor in tensors) / spent, queued


def speed_line(name: str, tensors: list[torch.Tensor], extras: Extras | None, what: str, plain: float) -> None:
    speed, queued = speed_of(tensors, extras)
    setting = f"{host.span_of(sum(tensor.numel() for tensor in tensors))}, {host.LAST_SPAN}"
    print(
        f"| {name} | {str(tensors[0].dtype)[6:]} | {len(tensors)} | {setting} | {what} "
        f"| {speed / 1e9:.0f} | {speed / plain:.0%} | {queued * 1e6:.0f} |",
        flush=True,
    )


HEADING = (
    "\n| model | dtype | tensors | span, last ones | what | GB/s | of a plain read | host, µs |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table(sweep: bool) -> None:
    models = {"124M": gpt_shapes(12, 768), "1.3B": gpt_shapes(24, 2048)}
    settings = [(host.SPAN, host.WIDE_SPAN, host.LAST_SPAN)]
    if sweep:
        settings = [(s, s, last) for s in (32768, 49152, 65536, 131072) for last in (s, 24576, 16384)]
    print(HEADING)
    for name, shapes in models.items():
        for dtype in (torch.bfloat16, torch.float32):
            tensors = [torch.randn(shape, device=DEVICE).mul_(1e-3).to(dtype) for shape in shapes]
            plain = read_bandwidth(sum(tensor.nbytes for tensor in tensors))
            for host.SPAN, host.WIDE_SPAN, host.LAST_SPAN in settings:  # type: ignore[misc]
                asked: dict[str, Extras | None] = {"row": None}
                if not sweep:
                    asked |= {"+ histogram": Extras(histogram=True), "+ sketch": Extras(sketch=True)}
                for what, extras in asked.items():
                    speed_line(name, tensors, extras, what, plain)
            del tensors


def dtypes() -> None:
    """One tensor of 2 GB of each dtype, ordinary values; then float32 with what is rarer."""
    print(HEADING)
    count = 1 << 28
    plain = read_bandwidth(1 << 30)
    kinds = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    for dtype in kinds:
        values = torch.randn(count, device=DEVICE).mul_(10.0)
        speed_line("one tensor", [values.to(dtype)], None, "row", plain)
    values = torch.randn(count, device=DEVICE)
    for dtype in (torch.float32, torch.bfloat16):
        speed_line("half zeros", [values.relu().to(dtype)], None, "row", plain)
    values[:: 1 << 14] = float("nan")
    speed_line("NaN in every span", [values], None, "row", plain)
    many = [torch.randn(64, 16, device=DEVICE) for _ in range(10_000)]
    speed_line("10,000 of 1,024", many, None, "row", plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="try other lengths of spans")
    parser.add_argument("--dtypes", action="store_true", help="only the table of dtypes")
    asked = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"{check_cases()} cases agree with the reference", flush=True)
    check_no_synchronisation()
    if not asked.dtypes:
        table(asked.sweep)
    dtypes()
    assert launching.serves_devices(), launching.backend()


if __name__ == "__main__":
    main()
