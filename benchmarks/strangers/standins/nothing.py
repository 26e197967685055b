"""Packages that draw, log or show, where they are not installed: anything may be asked of them, and nothing happens."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = (
    *(
        "IPython",
        "cmapy",
        "cv2",
        "h5py",
        "imageio",
        "matplotlib",
        "mpl_toolkits",
        "pandas",
        "seaborn",
        "skimage",
        "skvideo",
    ),
    *("tensorboard_logger", "visdom", "wandb"),
)


class _Class(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class Nothing(metaclass=_Class):
    """Is called, indexed, entered and asked for names, and gives itself again."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *_: Any, **__: Any) -> Nothing:
        return Nothing()

    def __getitem__(self, _: Any) -> Nothing:
        return Nothing()

    def __setitem__(self, _: Any, __: Any) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Nothing:
        return Nothing()

    def __add__(self, _: Any) -> Nothing:
        return Nothing()

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__

    def __exit__(self, *_: object) -> None:
        pass


class SummaryWriter(Nothing):
    """Writes nothing, into a folder that there is: scripts put files of their own beside."""

    def __init__(self, log_dir: Any = None, *_: Any, **__: Any) -> None:
        self.log_dir = str(log_dir or "runs")
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)


class _Module(types.ModuleType):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "subplots":  # a figure and its axes
            return lambda *_, **__: (Nothing(), Nothing())
        return Nothing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, _: types.ModuleType) -> None:
        pass


def module(name: str) -> types.ModuleType:
    """One more of them, whatever it is called."""
    return _Module(name)


def install() -> None:
    """What is installed comes first."""
    if importlib.util.find_spec("tensorboard") is None:
        module = sys.modules["torch.utils.tensorboard"] = _Module("torch.utils.tensorboard")
        module.SummaryWriter = SummaryWriter
    sys.meta_path.append(_Finder())
