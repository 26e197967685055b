"""The few calls of NVIDIA's driver by which compiled device code is loaded and launched, through ctypes.

A launch by Triton itself needs Triton in the training process: a third of a second to import, and tens of microseconds a launch.
Calls into the driver let other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
NO_CONTEXT: Final = 201
MAX_SHARED: Final = 48 * 1024
"""Shared memory that a program gets without asking for more."""
MAX_DYNAMIC_SHARED: Final = 8
"""The attribute by which it asks."""
RELAXED: Final = 2
"""A thread in this mode may allocate and load while another one captures a graph, without spoiling it."""
WARP: Final = 32


class DriverError(RuntimeError):
    """The driver refused something."""


class Driver:
    """One process's driver."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._contexts: dict[int, ctypes.c_void_p] = {}
        size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        library.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
        library.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
        library.cuFuncSetAttribute.argtypes = [pointer, number, number]
        library.cuCtxSetCurrent.argtypes = library.cuCtxPushCurrent_v2.argtypes = [pointer]
        library.cuCtxPopCurrent_v2.argtypes = [pointer]
        library.cuDeviceGet.argtypes = library.cuDevicePrimaryCtxRetain.argtypes = [pointer, number]
        library.cuThreadExchangeStreamCaptureMode.argtypes = [pointer]
        library.cuGetErrorName.argtypes = [number, pointer]
        self._launch = library.cuLaunchKernel
        self._launch.argtypes = [size, *[ctypes.c_uint] * 7, size, pointer, pointer]

    def load(self, device: int, image: bytes, name: str, shared: int) -> int:
        """Device code for one device; what can be launched. `name` is the function's in it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._library.cuCtxPushCurrent_v2(self._context(device)))
        try:
            self._check(self._library.cuModuleLoadData(ctypes.byref(module), image))
            self._check(self._library.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
            if shared > MAX_SHARED:
                self._check(self._library.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED, shared))
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return int(function.value or 0)

    def launch(
        self, device: int, function: int, grid: int, warps: int, shared: int, stream: int, arguments: Sequence[int]
    ) -> None:
        """Queue `grid` programs on a stream of the current device. Every argument takes up to eight bytes."""
        values = (ctypes.c_int64 * len(arguments))(*arguments)
        first = ctypes.addressof(values)
        # The driver reads of each as many bytes as the function takes, the lower ones first.
        places = (ctypes.c_void_p * len(arguments))(*range(first, first + 8 * len(arguments), 8))
        what = (function, grid, 1, 1, WARP * warps, 1, 1, shared, stream, places, None)
        status = self._launch(*what)
        if status == NO_CONTEXT:  # a thread that never called the runtime
            self._check(self._library.cuCtxSetCurrent(self._context(device)))
            status = self._launch(*what)
        self._check(status)

    def _context(self, device: int) -> ctypes.c_void_p:
        """The context that torch uses for a device."""
        context = self._contexts.get(device)
        if context is None:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self._check(self._library.cuDeviceGet(ctypes.byref(handle), device))
            self._check(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle))
            self._contexts[device] = context
        return context

    def relax(self) -> None:
        """Let this thread load while another captures a graph."""
        mode = ctypes.c_int(RELAXED)
        self._check(self._library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))

    def _check(self, status: int) -> None:
        if status:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            raise DriverError(f"the CUDA driver said {(name.value or b'error').decode()} ({status})")


@functools.cache
def driver() -> Driver:
    """This process's; raises OSError where there is none."""
    return Driver(ctypes.CDLL(LIBRARY))
