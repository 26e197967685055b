"""What watching costs from the first step, at default settings, on models that are not ours; as one Markdown table.

    python -m benchmarks.gpu.first_steps [--seconds 530] [--only gpt2,kernels] [--dry] [--list]

run from the root of a checkout; it puts `src` on the path by itself. Nothing is downloaded: models are made from their configurations.
It needs torch, triton, numpy, and for the models transformers and torchvision. What else Stethoscope needs comes from a folder
`.gpu_wheels`, which git ignores: on a machine with a network

    pip download --python-version 3.12 --only-binary=:all: --no-deps -d .gpu_wheels/raw \
        pyarrow zstandard rich markdown-it-py mdurl pygments
    python -m benchmarks.gpu.pack_wheels .gpu_wheels

makes `.gpu_wheels/site-cp312.zip` (31 MB) of them, which is unpacked to a temporary folder here. Without it, and without
pyarrow, watching goes on with `companion="off"`, and the table says so. The C kernels are compiled here by `build_kernels.py`
where there is a C compiler; without one torch's operations serve, and that is said.

Every part is a process of its own with a limit, begins with steps that nobody times until the card is warm, and stands between two
plain blocks: plain, the first 64 watched steps, 256 more, stop(), plain again. A block's mean is wall clock between two
synchronisations; single steps are measured by CUDA events at their ends. "Cold" is the first watched process of a machine: an empty
TRITON_CACHE_DIR. Results appear as they come and lie in $OUT/first_steps.md and $OUT/first_steps.log.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import dataclasses
import gc
import importlib.util
import io
import itertools
import json
import os
import pstats
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.outside_models import Job, gpt2, large_llama, llama, mixture, mlp, resnet, vit

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / ".gpu_wheels"
RESULTS = "RESULTS"
"""The environment variable that says where a part leaves its results."""


# ---- timing ----


@dataclasses.dataclass
class Block:
    """Steps between two synchronisations; milliseconds."""

    mean: float
    steps: list[float]


class Training:
    """A job, step by step."""

    def __init__(self, job: Job, device: str, compiled: bool) -> None:
        import torch

        self.torch, self.device = torch, device
        self.job = job
        self.run = torch.compile(job.model) if compiled else job.model

    def step(self) -> None:
        torch = self.torch
        with torch.autocast(self.device, dtype=torch.bfloat16):
            loss = self.job.loss(self.run)
        loss.backward()
        self.job.optimizer.step()
        self.job.optimizer.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def block(self, count: int) -> Block:
        self.synchronize()
        marks: list[Any] = []
        began = time.perf_counter()
        for _ in range(count):
            marks.append(self.mark())
            self.step()
        marks.append(self.mark())
        self.synchronize()
        mean = (time.perf_counter() - began) / count * 1e3
        if self.device == "cuda":
            return Block(mean, [a.elapsed_time(b) for a, b in itertools.pairwise(marks)])
        return Block(mean, [(b - a) * 1e3 for a, b in itertools.pairwise(marks)])

    def mark(self) -> Any:
        if self.device != "cuda":
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self, seconds: float, least: int) -> float:
        """Steps nobody times, until the card is warm; milliseconds of one, of the last ones."""
        began, done, last = time.perf_counter(), 0, 1.0
        while done < least or time.perf_counter() - began < seconds:
            last = self.block(4).mean
            done += 4
        return last

    def memory_mb(self) -> float:
        return self.torch.cuda.max_memory_allocated() / 1e6 if self.device == "cuda" else 0.0

    def forget_memory(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.reset_peak_memory_stats()


def most_of(steps: list[float], width: int) -> float:
    """The largest mean of so many steps in a row."""
    width = min(width, len(steps))
    return max(statistics.fmean(steps[first : first + width]) for first in range(len(steps) - width + 1))


def watched_round(training: Training, counts: dict[str, int], folder: str) -> dict[str, Any]:
    """Plain, watched from its first step, plain."""
    gc.collect()
    training.forget_memory()
    before = training.block(counts["plain"])
    memory = training.memory_mb()
    began = time.perf_counter()
    import stethoscope

    imported = time.perf_counter() - began
    companion = "process" if importlib.util.find_spec("pyarrow") else "off"
    training.forget_memory()
    began = time.perf_counter()
    session = stethoscope.watch(training.run, training.job.optimizer, run=folder, quiet=True, companion=companion)
    watch_s = time.perf_counter() - began
    first = training.block(counts["first"])
    steady = training.block(counts["steady"])
    more_memory = training.memory_mb() - memory
    trouble = errors_of(session)
    began = time.perf_counter()
    session.stop()
    stop_s = time.perf_counter() - began
    after = training.block(counts["plain"])
    plain = (before.mean + after.mean) / 2
    plain_median = statistics.median(before.steps[1:] + after.steps[1:])
    every = first.steps + steady.steps
    slow = sorted(range(len(every)), key=lambda step: -every[step])[:8]
    return {
        "plain": [before.mean, after.mean],
        "plain_worst": max(before.steps[1:] + after.steps[1:]) / plain_median,
        "import_s": imported,
        "watch_s": watch_s,
        "first_mean": first.mean / plain - 1,
        "first_worst": max(first.steps) / plain_median,
        "first_four": [round(step, 1) for step in first.steps[:4]],
        "steady_mean": steady.mean / plain - 1,
        "steady_most": most_of(steady.steps, 128) / statistics.fmean(before.steps[1:] + after.steps[1:]) - 1,
        "steady_median": statistics.median(steady.steps) / plain_median - 1,
        "steady_worst": max(steady.steps) / plain_median,
        "stop_s": stop_s,
        "memory_mb": more_memory,
        "slow": {step: round(every[step], 1) for step in sorted(slow) if every[step] > 1.15 * plain_median},
        "said": what_is_said(folder),
        "companion": companion,
        **trouble,
    }


def errors_of(session: Any) -> dict[str, Any]:
    """Errors of ours that were kept from the training, steps that were dropped, what the governor looks at how often."""
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        watcher = session._watcher
        found["errors"] = {str(name): count for name, count in watcher.guard.errors.items()}
        if found["errors"]:
            found["traceback"] = str(watcher.guard.last_traceback)[-1500:]
        found["dropped"] = watcher.ring.num_dropped
        found["every"] = watcher.schedule.periods()
    with contextlib.suppress(Exception):
        from stethoscope.kernels import backend

        found["backend"] = backend()
    return found


def what_is_said(folder: str) -> dict[str, Any]:
    """Of the run: which steps were not measured, and the causes."""
    try:
        import stethoscope
        from stethoscope.record.events import NotMeasured
        from stethoscope.store import open_run

        with open_run(folder) as run:
            waits = [said for _, said in run.events_of(NotMeasured)]
            passed = [[said.first, said.rows_until, said.outputs_until] for said in waits]
            return {
                "not_measured": passed,
                "causes": [str(cause.code) for cause in stethoscope.diagnose(run).causes],
                "steps": len(run.steps),
                "sites": len(run.sites),
            }
    except Exception as problem:
        return {"problem": repr(problem)[:300]}


def nothing_waits(training: Training, folder: str, steps: int = 16) -> str:
    """Watched steps under torch's sync debug mode, where plain ones pass."""
    import torch

    import stethoscope

    if training.device != "cuda":
        return "not looked at on a CPU"

    def strictly(count: int) -> str:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(count):
                training.step()
        except RuntimeError as problem:
            return str(problem)[:200]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return ""

    if said := strictly(2):
        return f"the plain step waits by itself: {said}"
    session = stethoscope.watch(training.run, training.job.optimizer, run=folder, quiet=True, companion="off", every=1)
    training.block(4)
    said = strictly(steps)
    errors = dict(session._watcher.guard.errors) if session._watcher is not None else {}
    session.stop()
    return said or (f"errors kept by the guard: {errors}" if errors else f"nothing waited in {steps} steps, every=1")


def profiled_steps(training: Training, folder: str, steps: int = 3, lines: int = 28) -> str:
    """Where the host's time goes in watch() and the first steps."""
    import stethoscope

    profile = cProfile.Profile()
    profile.enable()
    session = stethoscope.watch(training.run, training.job.optimizer, run=folder, quiet=True, companion="off")
    for _ in range(steps):
        training.step()
    profile.disable()
    training.synchronize()
    session.stop()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("cumulative").print_stats(160)
    shown = [line[:150] for line in out.getvalue().splitlines() if "stethoscope" in line or "triton" in line]
    return "\n".join(shown[:lines])


# ---- parts ----

MODELS: dict[str, tuple[str, Callable[[str, bool], Job], bool]] = {
    "gpt2-cold": ("transformers GPT-2 124M, cold", gpt2, False),
    "gpt2": ("transformers GPT-2 124M", gpt2, False),
    "resnet": ("torchvision ResNet-50", resnet, False),
    "vit": ("torchvision ViT-B/16", vit, False),
    "llama": ("transformers Llama 0.25B", llama, False),
    "mixture": ("transformers Mixtral 0.4B, 8 experts", mixture, False),
    "gpt2-compiled": ("transformers GPT-2 124M, compiled", gpt2, True),
    "llama-1.1B": ("transformers Llama 1.1B", large_llama, False),
    "mlp": ("an MLP", mlp, False),
}
PARTS: dict[str, int] = {
    "check": 90,
    "gpt2-cold": 60,
    "gpt2": 90,
    "kernels": 80,
    "resnet": 65,
    "vit": 65,
    "llama": 65,
    "mixture": 75,
    "gpt2-compiled": 120,
    "llama-1.1B": 110,
}
"""In this order, with the seconds that each may take at most."""


def model_part(name: str, seconds: float, dry: bool) -> dict[str, Any]:
    began = time.perf_counter()
    warnings.simplefilter("ignore")
    import torch

    device = "cpu" if dry else "cuda"
    torch.manual_seed(0)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    title, make, compiled = MODELS[name]
    training = Training(make(device, dry), device, compiled)
    settled = training.settle(0.1 if dry else 2.5, 4 if dry else 16)
    parameters = list(training.job.model.parameters())
    size = f"{sum(p.numel() for p in parameters) / 1e6:.0f}M, {len(parameters)} tensors"
    modules = sum(1 for _ in training.job.model.modules())
    left = seconds - (time.perf_counter() - began) - 14.0
    counts = counts_for(left * 1e3 / settled, cold=name.endswith("cold"), dry=dry)
    print(f"{title}: {size}, {modules} modules, {settled:.1f} ms a step, blocks {counts}", flush=True)
    folder = tempfile.mkdtemp()
    found: dict[str, Any] = {"title": title, "size": f"{size}, {modules} modules", "counts": counts}
    found["rounds"] = [watched_round(training, counts, f"{folder}/0")]
    say_round(found["rounds"][0])
    if name in ("gpt2", "mlp"):
        for title, work in (("waits", nothing_waits), ("profile", profiled_steps)):
            try:
                found[title] = work(training, f"{folder}/{title}")
            except Exception as problem:
                found[title] = repr(problem)[:300]
            print(f"{title}:\n{found[title]}", flush=True)
    spent = time.perf_counter() - began
    needed = sum(counts.values()) * settled / 1e3 + counts["plain"] * settled / 1e3 + 8.0
    if not dry and not name.endswith("cold") and seconds - spent > needed:
        found["rounds"].append(watched_round(training, counts, f"{folder}/1"))
        say_round(found["rounds"][1])
    shutil.rmtree(folder, ignore_errors=True)
    return found


def counts_for(steps: float, *, cold: bool, dry: bool) -> dict[str, int]:
    """Steps of the blocks, of about so many that there is time for."""
    if dry:
        return {"plain": 4, "first": 8, "steady": 12}
    if cold:
        return {"plain": 48, "first": 64, "steady": 128}
    full = {"plain": 96, "first": 64, "steady": 256}
    share = min(1.0, max(steps - 64, 96) / (2 * full["plain"] + full["steady"]))
    return {"plain": max(int(96 * share), 24), "first": 64, "steady": max(int(256 * share), 64)}


def say_round(found: dict[str, Any]) -> None:
    print(json.dumps(found, default=str), flush=True)


def check_part(dry: bool) -> dict[str, Any]:
    """Rows, histograms and sketches on the device against the reference, for the dtypes that occur; how long compiling takes."""
    import torch

    sys.path.insert(0, str(ROOT))
    from tests.kernels import triton_cases
    from tests.kernels.agreement import assert_rows_agree, ordinary_tensor, with_specials

    from stethoscope import kernels
    from stethoscope.kernels import launching, reference

    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64]
    bytes_of_floats = [torch.float8_e4m3fn, torch.float8_e5m2]
    kinds += bytes_of_floats
    if dry:
        tensors = [torch.randn(9000), torch.arange(50)]
        assert_rows_agree(kernels.measure(tensors), reference.rows(tensors))
        return {"agreed": 1, "problems": [], "seconds": 0.0, "backend": kernels.backend()}
    from benchmarks.gpu.kernel_check import DEVICE_0, check_no_synchronisation

    from stethoscope.kernels.variants import Variant

    wanted = [Variant("tensor_sketches"), Variant("write_plan")]
    for dtype in kinds:
        name = str(dtype).removeprefix("torch.")
        wanted += [Variant("chunk_sketches", name), Variant("gather_values", name)]
        for aligned in (True, False):
            wanted += [Variant("tensor_sums", name, aligned, limited) for limited in (False, True)]
            wanted.append(Variant("chunk_histograms", name, aligned))
    began = time.perf_counter()
    launching.prepare(DEVICE_0, (), wanted).wait()
    seconds = time.perf_counter() - began
    print(f"{len(wanted)} kernels compiled and loaded in {seconds:.1f} s; {kernels.backend()}", flush=True)
    agreed, problems = 0, []
    for seed, dtype in enumerate(kinds):
        groups = [
            [ordinary_tensor(dtype, 9000, seed), ordinary_tensor(dtype, 300_001, seed + 1)[1:]],
            [ordinary_tensor(dtype, 3_000_000, seed + 2)],
        ]
        if dtype.is_floating_point and dtype.itemsize > 1:
            groups.append([with_specials(ordinary_tensor(dtype, 8192 + 5, 3), 4), torch.zeros(70_000, dtype=dtype)])
        if dtype in bytes_of_floats:
            every = triton_cases.every_byte(dtype)
            finite = every[torch.isfinite(every.float())]
            groups += [[every.repeat(200)], [finite.repeat(400), finite[finite.float() > 1].repeat(400)]]
        for group in groups:
            try:
                triton_cases.check([tensor.to("cuda") for tensor in group], None, seed)
                agreed += 1
            except Exception as problem:
                problems.append(f"{dtype}: {str(problem)[:400]}")
    for work in (
        lambda: triton_cases.check_gather([ordinary_tensor(dtype, 700, 1).to("cuda") for dtype in kinds]),
        lambda: triton_cases.check_slots([ordinary_tensor(dtype, 9001, 1).to("cuda") for dtype in kinds[:4]]),
        check_no_synchronisation,
    ):
        try:
            work()
            agreed += 1
        except Exception as problem:
            problems.append(repr(problem)[:400])
    return {"agreed": agreed, "problems": problems, "seconds": seconds, "backend": kernels.backend()}


def kernels_part(dry: bool) -> dict[str, Any]:
    """Bytes a second beside a plain read of as many, in the same minute."""
    if dry:
        return {"lines": [["dry", "float32", 1, "row", 0.0, 1.0, 0.0]]}
    import torch
    from benchmarks.gpu.kernel_check import gpt_shapes, read_bandwidth, speed_of

    from stethoscope.kernels import Extras

    lines: list[list[Any]] = []

    def line(name: str, tensors: list[Any], extras: Extras | None, what: str) -> None:
        try:
            plain = read_bandwidth(sum(tensor.nbytes for tensor in tensors))
            speed, queued = speed_of(tensors, extras)
            again = read_bandwidth(sum(tensor.nbytes for tensor in tensors))
            dtype = str(tensors[0].dtype).removeprefix("torch.")
            found = [name, dtype, len(tensors), what, speed / 1e9, speed / ((plain + again) / 2), queued * 1e6]
            lines.append(found)
            print(found, flush=True)
        except Exception as problem:
            print(f"{name}, {what}: {problem!r}"[:400], flush=True)

    for dtype in (torch.bfloat16, torch.float32):
        tensors = [torch.randn(shape, device="cuda").mul_(1e-3).to(dtype) for shape in gpt_shapes(12, 768)]
        line("124M", tensors, None, "row")
        line("124M", tensors, Extras(histogram=True), "row + histogram")
        line("124M", tensors, Extras(sketch=True), "row + sketch")
        del tensors
    count = 1 << 28
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        values = torch.randn(count, device="cuda").mul_(10.0).to(dtype)
        line("one tensor of 2^28", [values], None, "row")
        if dtype == torch.bfloat16:
            line("one tensor of 2^28", [values], Extras(histogram=True), "row + histogram")
            line("one tensor of 2^28", [values], Extras(sketch=True), "row + sketch")
        del values
    tensors = [torch.randn(shape, device="cuda").mul_(1e-3).bfloat16() for shape in gpt_shapes(24, 2048)]
    line("1.3B", tensors, None, "row")
    return {"lines": lines}


# ---- the table ----


def table(found: dict[str, Any]) -> str:
    lines = [found.get("machine", ""), ""]
    if check := found.get("check"):
        lines += [
            f"Kernels against the reference on the device: {check.get('agreed')} groups agree; "
            f"{'; '.join(check.get('problems', [])) or 'no problem'}. Compiled beside in {check.get('seconds', 0):.1f} s. "
            f"{check.get('backend')}.",
            "",
        ]
    lines += [
        "| default settings | plain, before / after, ms | import, watch(), s | first 64 steps: mean | worst | 256 more: mean | worst 128 | "
        "median | worst step (plain's own) | stop(), s | more memory, MB | not measured |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in MODELS:
        part = found.get(name)
        if part is None:
            continue
        if "failed" in part:
            lines.append(f"| {MODELS[name][0]} | {part['failed']} | | | | | | | | | | |")
            continue
        lines += [row(part, one) for one in part["rounds"]]
    lines.append("")
    for name in MODELS:
        part = found.get(name)
        if part is None or "rounds" not in part:
            continue
        for number, one in enumerate(part["rounds"]):
            notes = [f"{part['size']}; blocks {part['counts']}", f"first steps {one['first_four']} ms"]
            notes.append(f"steps over 1.15 times plain: {one['slow'] or 'none'}")
            notes.append(
                f"run: {one['said']}; governor: {one.get('every')}; {one.get('backend')}; companion {one['companion']}"
            )
            if one.get("errors") or one.get("dropped"):
                notes.append(f"ERRORS {one.get('errors')}, dropped {one.get('dropped')}, {one.get('traceback', '')}")
            lines.append(f"- {part['title']}, round {number + 1}: " + "; ".join(notes))
        if "waits" in part:
            lines.append(f"- {part['title']}: {part['waits']}")
    if kernels := found.get("kernels", {}).get("lines"):
        lines += [
            "",
            "| model | dtype | tensors | what | GB/s | of a plain read | host, µs a call |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        lines += [f"| {a} | {b} | {c} | {d} | {e:.0f} | {f:.0%} | {g:.0f} |" for a, b, c, d, e, f, g in kernels]
    for name, part in found.items():
        if isinstance(part, dict) and "failed" in part:
            lines += ["", f"{name} failed: {part['failed']}"]
    if profile := found.get("gpt2", {}).get("profile"):
        lines += [
            "",
            "Where watch() and the first three steps of GPT-2 spend the host's time, a warm cache:",
            "",
            "```",
        ]
        lines += [str(profile), "```"]
    return "\n".join(lines) + "\n"


def row(part: dict[str, Any], one: dict[str, Any]) -> str:
    before, after = one["plain"]
    waits = one["said"].get("not_measured") or []
    passed = ", ".join(f"{first}–{rows - 1} (outputs –{outputs - 1})" for first, rows, outputs in waits) or "–"
    return (
        f"| {part['title']} | {before:.2f} / {after:.2f} | {one['import_s']:.2f}, {one['watch_s']:.3f} | {one['first_mean']:+.1%} "
        f"| {one['first_worst']:.2f} x | {one['steady_mean']:+.2%} | {one['steady_most']:+.2%} | {one['steady_median']:+.2%} "
        f"| {one['steady_worst']:.2f} x ({one['plain_worst']:.2f} x) | {one['stop_s']:.2f} | {one['memory_mb']:.0f} | {passed} |"
    )


# ---- all of it ----


def prepare_machine() -> dict[str, str]:
    """What every part's process needs; returns its environment."""
    paths = [str(ROOT / "src"), str(ROOT)]
    try:
        packed = WHEELS / f"site-cp{sys.version_info.major}{sys.version_info.minor}.zip"
        if packed.exists():
            unpacked = tempfile.mkdtemp(prefix="wheels-")
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(unpacked)
            paths.append(unpacked)
        elif (WHEELS / "site").exists():
            paths.append(str(WHEELS / "site"))
    except Exception as problem:
        print(f"the wheels cannot be unpacked: {problem!r}", flush=True)
    if not (ROOT / "src/stethoscope/kernels/_cpu.so").exists():
        try:
            done = subprocess.run([sys.executable, str(ROOT / "build_kernels.py")], timeout=60, check=False)
            print(f"the C kernels: {'built' if done.returncode == 0 else 'not built'}", flush=True)
        except Exception as problem:
            print(f"the C kernels are not built: {problem!r}", flush=True)
    try:  # as pip does where it installs; what Python would compile by the way is no cost of watching
        command = [sys.executable, "-m", "compileall", "-q", str(ROOT / "src"), *paths[2:]]
        subprocess.run(command, timeout=90, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except Exception as problem:
        print(f"no bytecode beforehand: {problem!r}", flush=True)
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, *inherited])),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def machine(environment: dict[str, str]) -> str:
    """What it ran on."""
    code = (
        "import torch, sys, os\n"
        "name = torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU'\n"
        "words = [name, f'torch {torch.__version__}', f'Python {sys.version.split()[0]}', f'{len(os.sched_getaffinity(0))} cores']\n"
        "for package in ('triton', 'transformers', 'torchvision', 'pyarrow', 'zstandard'):\n"
        "    try: words.append(f'{package} {__import__(package).__version__}')\n"
        "    except Exception as problem: words.append(f'no {package} ({type(problem).__name__}: {problem})'[:120])\n"
        "print(', '.join(words))\n"
    )
    try:
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
        return (done.stdout.strip().splitlines() or [done.stderr[-300:]])[-1]
    except Exception as problem:
        return f"unknown ({problem!r})"


@contextlib.contextmanager
def part_process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_part(name: str, limit: float, environment: dict[str, str], dry: bool, log: io.TextIOBase) -> dict[str, Any]:
    """One part in a process of its own, within its limit; whatever happens to it."""
    import threading

    results = Path(tempfile.mkdtemp()) / "results.json"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.gpu.first_steps",
        "--part",
        name,
        "--seconds",
        f"{limit:.0f}",
    ]
    tail: list[str] = []
    with part_process([*command, *["--dry"] * dry], environment | {RESULTS: str(results)}) as process:
        killer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
        killer.start()
        assert process.stdout is not None
        for line in process.stdout:
            tail = [*tail[-14:], line.rstrip()]
            print(f"[{name}] {line}"[:600].rstrip(), flush=True)
            log.write(f"[{name}] {line}")
            log.flush()
        code = process.wait()
        killer.cancel()
    try:
        return dict(json.loads(results.read_text()))
    except (OSError, ValueError):
        return {"failed": f"ended with {code} after at most {limit:.0f} s: {' | '.join(tail[-3:])}"[:400]}


def run_all(asked: argparse.Namespace) -> None:
    began = time.perf_counter()
    out = Path(os.environ.get("OUT") or tempfile.mkdtemp(prefix="first-steps-"))
    out.mkdir(parents=True, exist_ok=True)
    environment = prepare_machine()
    found: dict[str, Any] = {"machine": machine(environment)}
    print(found["machine"], flush=True)
    cold = tempfile.mkdtemp(prefix="triton-cold-")
    aside = tempfile.mkdtemp(prefix="triton-aside-")
    names = asked.only.split(",") if asked.only else list(PARTS)
    with (out / "first_steps.log").open("w") as log:
        for name in names:
            left = asked.seconds - (time.perf_counter() - began)
            if left < 20:
                found[name] = {"failed": "there was no time left"}
                continue
            # What the check and the kernels' table compile must not warm the cache that is to be cold.
            cache = aside if name in ("check", "kernels") else cold
            limit = min(float(PARTS.get(name, 90)), left)
            part = environment | {"TRITON_CACHE_DIR": cache}
            found[name] = run_part(name, limit, part, asked.dry, log)
            spent = time.perf_counter() - began
            print(
                f"== {name}: {'failed: ' + found[name]['failed'] if 'failed' in found[name] else 'done'}, {spent:.0f} s",
                flush=True,
            )
            (out / "first_steps.md").write_text(table(found))
            (out / "first_steps.json").write_text(json.dumps(found, indent=1, default=str))
    print("\n" + table(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=530.0, help="how long all of it may take")
    parser.add_argument("--only", default="", help="only these parts, by their names")
    parser.add_argument("--dry", action="store_true", help="tiny models on a CPU, to see that it runs")
    parser.add_argument("--list", action="store_true", help="the parts, and no more")
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print("\n".join(f"{name}: at most {seconds} s" for name, seconds in PARTS.items()))
        return
    if not asked.part:
        run_all(asked)
        return
    try:
        if asked.part == "check":
            found = check_part(asked.dry)
        elif asked.part == "kernels":
            found = kernels_part(asked.dry)
        else:
            found = model_part(asked.part, asked.seconds, asked.dry)
    except Exception as problem:
        traceback.print_exc()
        found = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
    Path(os.environ[RESULTS]).write_text(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
