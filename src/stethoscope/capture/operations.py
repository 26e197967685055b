"""The names of operations: without decoration, and in the groups in which the way of the data tells them."""

from __future__ import annotations

from typing import Final

ADDITIVE: Final = frozenset(
    {
        "add",
        "sub",
        "rsub",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "dstack",
        "sum",
        "index_add",
        "scatter_add",
        "index_put",
        "index_copy",
        "lerp",
        "addcmul",
        "addcdiv",
        "setitem",
        "copy",
        "where",
    }
)
"""Operations that let every part through with a gradient of its own size: a way around that ends here is a
residual one."""

QUIET: Final = frozenset(
    {
        "get",
        "view",
        "reshape",
        "permute",
        "transpose",
        "contiguous",
        "flatten",
        "unflatten",
        "squeeze",
        "unsqueeze",
        "expand",
        "expand_as",
        "repeat",
        "getitem",
        "chunk",
        "split",
        "unbind",
        "iter",
        "to",
        "float",
        "half",
        "bfloat16",
        "type",
        "type_as",
        "view_as",
        "t",
        "clone",
        "detach",
        "requires_grad",
        "narrow",
        "select",
        "movedim",
        "swapaxes",
        "tile",
        "rename",
        "align_to",
        "set",
        "deepcopy",
        "cpu",
        "cuda",
    }
)
"""Operations that move numbers without changing them: not worth a name on an edge."""

FRESH: Final = frozenset(
    {
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
    }
)
"""These take a shape from their argument, and no data."""


def bare_name(name: str) -> tuple[str, bool]:
    """An operation's name without decoration, and whether it writes into its first argument."""
    if name.startswith("__") and name.endswith("__"):
        bare = name[2:-2]
        if bare == "setitem":
            return bare, True
        if bare in ("radd", "rsub", "rmul", "rmatmul", "rtruediv", "rpow"):
            return bare[1:], False
        if bare in ("iadd", "isub", "imul", "itruediv", "imatmul", "ipow", "ior", "iand", "ixor"):
            return bare[1:], True
        return bare, False
    if name.endswith("_") and not name.endswith("__"):
        return name[:-1], name != "requires_grad_"
    return name, False
