"""Device code on its way to a device: loaded once, launched by number, and compiled beside whoever trains.

On NVIDIA's devices nothing is ever compiled where it is asked for: what is not on the disk yet is compiled by a process of its own
(`compiling.py`), loaded by a thread when it is there, and until then its caller is told that it is not. Elsewhere, and in
Triton's interpreter, Triton compiles and launches by itself.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from stethoscope.kernels import compiled, cuda_driver, variants
from stethoscope.kernels.fetching import stream_number
from stethoscope.kernels.variants import Variant
from stethoscope.record import printable

COMPILE_SECONDS: Final = 300.0
"""After so long the compiler is taken to hang."""
PACKAGE_FOLDER: Final = Path(__file__).parents[2]


class Function:
    """What can be launched on one device."""

    __slots__ = ("_device", "_handle", "_shared", "_warps", "num_arguments", "num_scratch")

    def __init__(self, device: int, binary: compiled.Binary) -> None:
        self._device, self._warps, self._shared = device, binary.warps, binary.shared
        self.num_arguments, self.num_scratch = binary.num_arguments, binary.num_scratch
        self._handle = cuda_driver.driver().load(device, binary.image, binary.name, binary.shared)

    def launch(self, grid: int, stream: int, arguments: Sequence[int]) -> None:
        """Queue so many programs."""
        assert len(arguments) == self.num_arguments
        given = [*arguments, *[0] * self.num_scratch]
        cuda_driver.driver().launch(self._device, self._handle, grid, self._warps, self._shared, stream, given)


_functions: dict[tuple[int, Variant], Function] = {}
_loading = threading.Lock()
_preparations: dict[int, Preparation] = {}
"""By the number of the device."""
_given_up: list[str] = []


@functools.cache
def available() -> bool:
    """Whether triton can be imported; says nothing about a device."""
    return importlib.util.find_spec("triton") is not None


def serves_devices() -> bool:
    """Whether triton is there and has not failed yet."""
    return not _given_up and available()


def give_up(problem: Exception) -> None:
    """From now on torch operations are used; said once."""
    if not _given_up:
        logging.getLogger("stethoscope").warning("The Triton kernel cannot be used: %s", problem)
    _given_up.append(f"{type(problem).__name__}: {printable(str(problem))}")


def backend() -> str:
    """What measures CUDA tensors, for people to read."""
    if _given_up:
        return f"torch operations; Triton failed: {_given_up[0]}"
    return "Triton" if available() else "torch operations; triton is not installed"


def is_driven(device: Any) -> bool:
    """Whether code for this device is compiled beside and launched by the driver: NVIDIA's are."""
    return device.type == "cuda" and sys.modules["torch"].version.hip is None


def are_available(device: Any, wanted: Iterable[Variant]) -> bool:
    """Whether these can be launched at once. What is not compiled yet will be, beside."""
    if not is_driven(device):
        return True
    missing = [variant for variant in wanted if (device.index, variant) not in _functions]
    if not missing:
        return True
    if sys.modules["torch"].cuda.is_current_stream_capturing():
        return False  # nothing can be loaded while a graph is captured
    return prepare(device, (), missing).holds(missing)


def queue(device: Any, variant: Variant, grid: int, *arguments: Any) -> None:
    """Launch a variant that is available on the device's current stream: tensors, by their addresses, and whole numbers."""
    with on_device(device):
        if is_driven(device):
            function = _functions[device.index, variant]
            given = [item if type(item) is int else item.data_ptr() for item in arguments]
            function.launch(grid, stream_number(device), given)
            return
        code = variants.source(variant, None)
        code.function[(grid,)](*arguments, **code.constants, **code.options)


def on_device(device: Any) -> Any:
    """A launch goes to the current device, which need not be the tensors'."""
    torch = sys.modules["torch"]
    if device.type == "cuda" and torch.cuda.current_device() != device.index:
        return torch.cuda.device(device)
    return contextlib.nullcontext()


@functools.cache
def capability_of(device: Any) -> int:
    """90 for Hopper."""
    major, minor = sys.modules["torch"].cuda.get_device_capability(device)
    return int(major * 10 + minor)


def prepare(device: Any, needed: Iterable[Variant], useful: Iterable[Variant]) -> Preparation:
    """Have these loaded, and compiled where that was never done. Returns at once; the useful ones come after the needed ones."""
    found = _preparations.get(device.index)
    if found is None:
        found = _preparations[device.index] = Preparation(device.index, capability_of(device))
    found.ask(list(needed), list(useful))
    return found


def is_asked_for() -> bool:
    """Whether any device's code was asked for."""
    return bool(_preparations)


def preparations() -> list[Preparation]:
    """Of all devices that were asked for."""
    return list(_preparations.values())


def _load(device: int, capability: int, variant: Variant) -> bool:
    """Load what was compiled; False where it was not."""
    if (device, variant) in _functions:
        return True
    binary = compiled.read(compiled.folder_for(capability), variant)
    if binary is None:
        return False
    with _loading:
        if (device, variant) not in _functions:
            _functions[device, variant] = Function(device, binary)
    return True


class Preparation:
    """What one device waits for."""

    def __init__(self, device: int, capability: int) -> None:
        self._device, self._capability = device, capability
        self._needed: set[Variant] = set()
        self._useful: set[Variant] = set()
        self._order: list[Variant] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._has_failed = False

    @property
    def has_needed(self) -> bool:
        """Whether what every step takes can be launched, or never will be."""
        return not self._needed

    @property
    def has_all(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self._needed and not self._useful

    def holds(self, variants: Iterable[Variant]) -> bool:
        """Whether these can be launched."""
        return all((self._device, variant) in _functions for variant in variants)

    def wait(self, timeout: float = COMPILE_SECONDS) -> bool:
        """Wait until nothing is waited for; never for a training thread."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return self.has_all

    def ask(self, needed: list[Variant], useful: list[Variant]) -> None:
        """Load what was compiled, now; have the rest compiled."""
        if self._has_failed:
            return
        try:
            missing = [v for v in [*needed, *useful] if not _load(self._device, self._capability, v)]
        except Exception as problem:  # a driver that we do not know: torch's own operations still work
            self._fail(problem)
            return
        with self._lock:
            fresh = [v for v in missing if v not in self._needed and v not in self._useful]
            self._needed.update(v for v in missing if v in needed)
            self._useful.update(v for v in fresh if v not in self._needed)
            self._order += fresh
            if self._order and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stethoscope-kernels", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Compile in another process and load what it tells of, until nothing is asked for any more."""
        try:
            cuda_driver.driver().relax()
            while True:
                with self._lock:
                    asked, self._order = self._order, []
                    if not asked:
                        self._thread = None
                        return
                self._compile(asked)
        except Exception as problem:
            self._fail(problem)

    def _compile(self, asked: list[Variant]) -> None:
        folder = compiled.folder_for(self._capability)
        names = [variant.name for variant in asked]
        command = [sys.executable, "-m", "stethoscope.kernels.compiling", str(folder), str(self._capability), *names]
        path = os.pathsep.join([str(PACKAGE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        deadline = threading.Timer(COMPILE_SECONDS, _kill_group, [process.pid])
        deadline.daemon = True
        deadline.start()
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    self._arrived(line)
        finally:
            deadline.cancel()
            _kill_group(process.pid)
            process.wait()
        missing = [name for name in names if variants.variant_of(name) in self._needed | self._useful]
        if missing:
            raise RuntimeError(f"the compiler ended with code {process.returncode} before {missing[0]} was compiled")

    def _arrived(self, line: str) -> None:
        name, _, problem = line.rstrip("\n").partition("\t")
        if problem:
            raise RuntimeError(f"{name} does not compile: {problem}")
        variant = variants.variant_of(name)
        if not _load(self._device, self._capability, variant):
            raise RuntimeError(f"{name} was compiled, but cannot be read")
        self._needed.discard(variant)
        self._useful.discard(variant)

    def _fail(self, problem: Exception) -> None:
        self._has_failed = True
        give_up(problem)
        with self._lock:
            self._needed.clear()
            self._useful.clear()
            self._order, self._thread = [], None


def _kill_group(process: int) -> None:
    """The compiler and those that it forked; nothing where they have ended."""
    with contextlib.suppress(OSError):
        os.killpg(process, signal.SIGKILL)
