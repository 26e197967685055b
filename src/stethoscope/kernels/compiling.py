"""Device code compiled in a process of its own, so that nobody's training waits for a compiler.

    python -m stethoscope.kernels.compiling FOLDER CAPABILITY VARIANT...

It needs no device and takes none of its memory. What is done is told on stdout, a line each: the variant's name, and after a tab
what went wrong, if something did. Whoever asked reads the files; processes that ask for the same meanwhile wait for this one.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from stethoscope.kernels import compiled
from stethoscope.kernels.compiled import Binary
from stethoscope.kernels.variants import Variant, source, variant_of

WARP: Final = 32
NICE: Final = 10
MAX_WORKERS: Final = 8
LOCK: Final = "lock"


def compile_variant(variant: Variant, capability: int) -> Binary:
    """The device code of one variant for NVIDIA's devices of a capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    code = source(variant, capability)
    rest = iter(code.types)
    signature = {name: "constexpr" if name in code.constants else next(rest) for name in code.function.arg_names}
    asked = ASTSource(code.function, signature, constexprs=code.constants)
    done = triton.compile(asked, target=GPUTarget("cuda", capability, WARP), options=code.options)
    metadata = done.metadata
    return Binary(
        name=metadata.name,
        warps=int(metadata.num_warps),
        shared=int(metadata.shared),
        num_arguments=len(code.types),
        num_scratch=_num_scratch(done.asm["ptx"], metadata, len(code.types)),
        image=bytes(done.asm["cubin"]),
    )


def _num_scratch(ptx: str, metadata: Any, num_arguments: int) -> int:
    """Pointers that this version of Triton hands over after ours, which must be to nothing."""
    found = re.search(r"\.entry\s+\w+\s*\(([^)]*)\)", ptx)
    taken = re.findall(r"\.param\s+\.(\w+)", found.group(1)) if found else []
    more = taken[num_arguments:]
    wants_memory = any(getattr(metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile"))
    if len(taken) < num_arguments or more != ["u64"] * len(more) or wants_memory or metadata.num_ctas != 1:
        raise NotImplementedError(f"Triton hands over {taken} where we know of {num_arguments}")
    return len(more)


def compile_all(folder: Path, capability: int, variants: list[Variant]) -> None:
    """Compile what is not there yet and tell of each, in several processes where there are processors for them."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    num_workers = max(min(len(variants), processors // 2, MAX_WORKERS), 1)
    import triton  # noqa: F401 - once, before the others are forked

    children = []
    for worker in range(1, num_workers):
        child = os.fork()
        if child == 0:
            try:
                _work(folder, capability, variants[worker::num_workers])
            finally:
                os._exit(0)
        children.append(child)
    _work(folder, capability, variants[::num_workers])
    for child in children:
        os.waitpid(child, 0)


def _work(folder: Path, capability: int, variants: list[Variant]) -> None:
    for variant in variants:
        try:
            if not compiled.exists(folder, variant):
                compiled.write(folder, variant, compile_variant(variant, capability))
            told = variant.name
        except Exception as problem:  # told to whoever asked, who knows what to do without it
            told = f"{variant.name}\t{type(problem).__name__}: {problem}".replace("\n", " ")
        # In one piece, as several write: told in parts lines would mix.
        os.write(sys.stdout.fileno(), f"{told[:1000]}\n".encode())


def main(arguments: list[str]) -> int:
    """As from a command line."""
    folder, capability = Path(arguments[0]), int(arguments[1])
    os.nice(NICE)
    # Lines of source code make the files five times as large and help nobody here.
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    # What Triton keeps by the way nobody reads again: `folder` has what is wanted.
    with compiled.locked(folder / LOCK), tempfile.TemporaryDirectory(dir=folder) as aside:
        os.environ["TRITON_CACHE_DIR"] = aside
        compile_all(folder, capability, [variant_of(name) for name in arguments[2:]])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
