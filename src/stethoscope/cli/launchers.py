"""Programs that start a training script in several processes: torchrun and its relatives.

The launcher itself trains nothing. `stethoscope run -m torch.distributed.run … train.py` therefore hands
`-m stethoscope run` on: the launcher starts that with the script in every worker, and is not watched itself.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

LAUNCHERS: Final = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
COMMANDS: Final = {("torchrun",): LAUNCHERS[0], ("accelerate", "launch"): LAUNCHERS[2]}
"""The console scripts of two of them."""


def find_launcher(module: str | None, words: list[str]) -> tuple[str, list[str]] | None:
    """The launcher that is called, as a module, and its words; None for any other script or module."""
    if module is not None:
        return (module, words) if module in LAUNCHERS else None
    for command, name in COMMANDS.items():
        if (PurePath(words[0]).name, *words[1 : len(command)]) == command:
            return name, words[len(command) :]
    return None


def watch_workers(launcher: str, words: list[str], options: Sequence[str]) -> list[str] | None:
    """The launcher's words so that every worker runs its script under `stethoscope run` with these options.

    None where the workers run no Python script that could be told apart. Words that the launcher does not understand
    stay as they are: it says so itself.
    """
    # Imported before stderr is another one: the launcher's own log must go where it goes without us.
    module = importlib.import_module(launcher)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            args = _parse_words(module, words)
    except SystemExit:
        return words
    index = len(words) - len(args.training_script_args) - 1
    if args.no_python or getattr(args, "run_path", False) or words[index] != args.training_script:
        return None
    before = ["-m", *words[:index]]
    script = [*(["-m"] if args.module else ["--"]), args.training_script]
    if not getattr(args, "use_env", True):
        # torch.distributed.launch puts the worker's number before all other words: here it must come after the script.
        before.insert(0, "--use-env")
        script.append("--local-rank=${local_rank}")
    return [*before, "stethoscope", "run", *options, *script, *args.training_script_args]


def _parse_words(module: Any, words: list[str]) -> Any:
    if hasattr(module, "parse_args"):
        return module.parse_args(words)
    return module.launch_command_parser().parse_args(words)
