"""What the machine lacks for a fetched program: a GPU to ask for, a seed of its own, an end in reasonable time.

Python imports this by itself when the folder is on PYTHONPATH. Nothing here knows of the debugger.
"""

import os
import sys

_STEPS = int(os.environ.get("STRANGERS_STEPS", "0"))
_SEED = int(os.environ.get("STRANGERS_SEED", "0"))


def _prepare() -> None:
    import random

    import nothing
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    nothing.install()
    torch.set_num_threads(1)
    os.cpu_count = lambda: 2  # as many workers as a small machine has
    plain = torch.manual_seed

    def shifted(seed: int) -> torch.Generator:
        """A script that seeds itself gets another seed in each of its runs."""
        return plain(int(seed) + 1000 * _SEED)

    torch.manual_seed = shifted
    torch.random.manual_seed = shifted
    random.seed(_SEED)
    np.random.seed(_SEED)
    shifted(0)
    for kind in (torch.nn.Module, torch.Tensor):
        kind.cuda = lambda self, *_, **__: self
    if _STEPS:
        done = 0

        def count(*_: object) -> None:
            nonlocal done
            done += 1
            if done >= _STEPS:
                raise KeyboardInterrupt  # as Ctrl-C would end it

        register_optimizer_step_post_hook(count)


if os.environ.get("STRANGERS") and "pip" not in sys.argv[0]:
    _prepare()
