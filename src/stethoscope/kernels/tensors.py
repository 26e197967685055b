"""What a torch tensor really holds: a plain strided tensor of real numbers, or nothing that can be read.

Imports torch nowhere: it works on tensors that were handed in, with the torch they came from.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.reference import SMALLEST_NORMAL

if TYPE_CHECKING:
    import torch

READABLE: Final = frozenset(SMALLEST_NORMAL) | {
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """A strided tensor of real numbers, and how many zeros a sparse one leaves out."""

    tensor: torch.Tensor
    implicit_zeros: int = 0


def is_tensor(value: Any) -> bool:
    """Whether this is a torch tensor; false without importing torch where torch is not loaded."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def dtype_name(tensor: torch.Tensor) -> str:
    """ "float32", "bfloat16", ..."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of a contiguous tensor on the CPU, not copied: valid while the tensor is.

    Not by `numpy()`: after that nobody may resize the storage any more, as FSDP does around every layer.
    """
    size = tensor.numel() * tensor.element_size()
    if not size:
        return np.zeros(0, dtype=np.uint8)
    memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
    return np.frombuffer(memoryview(memory), dtype=np.uint8)


def plain(tensor: Any) -> Plain | None:
    """The tensor's own numbers as a strided real tensor, or None where there are none to read.

    DTensors give their local shard. Sparse tensors give their values and the count of what they leave out
    (an uncoalesced one is coalesced first, which waits for the device), jagged nested ones their values. None for
    meta, fake, other nested, quantised and packed sub-byte tensors, inside vmap or grad transforms, and where the
    storage was freed.
    """
    torch = sys.modules["torch"]
    try:
        # What a subclass does in its __torch_function__ is the user's code, and may raise or count its calls.
        with torch._C.DisableTorchFunction():
            return _plain(torch, tensor)
    except Exception:
        # A subclass or wrapper that does not let itself be read: the caller counts it as unsupported.
        return None


def _plain(torch: Any, tensor: Any) -> Plain | None:
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        tensor = local
    tensor = tensor.detach()
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    if tensor.layout is torch.jagged:
        if getattr(tensor, "_lengths", None) is not None:
            return None  # there are gaps between the rows, which hold anything
        tensor = tensor._values.detach()
    if tensor.is_nested or tensor.is_quantized or dtype_name(tensor) not in READABLE:
        return None
    implicit_zeros = 0
    if tensor.layout is not torch.strided:
        values = _stored_values(torch, tensor)
        if values is None:
            return None
        implicit_zeros = tensor.numel() - values.numel()
        tensor = values.detach()
    if type(tensor) is not torch.Tensor:
        if hasattr(type(tensor), "__tensor_flatten__") or "Fake" in type(tensor).__name__:
            return None
        tensor = tensor.as_subclass(torch.Tensor)
    if tensor.is_meta or not _has_storage(tensor):
        return None
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
        implicit_zeros *= 2
    return Plain(tensor.resolve_neg(), implicit_zeros)


def _stored_values(torch: Any, tensor: Any) -> Any:
    if tensor.layout is torch.sparse_coo:
        return tensor.coalesce().values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    return None


def _has_storage(tensor: Any) -> bool:
    """Whether the storage reaches the tensor's last element: sharding frees storages under live views."""
    if tensor.numel() == 0:
        return True
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return bool(tensor.untyped_storage().nbytes() >= needed and tensor.data_ptr() != 0)
