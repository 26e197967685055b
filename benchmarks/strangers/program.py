"""What is known of a fetched program: where it is, how it is started, what it prints of its own success."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Program:
    """One script of a public repository. Nothing of it is stored here."""

    repository: str
    script: str
    args: str = ""
    steps: int = 300
    """Steps of all optimizers after which it is ended as Ctrl-C would."""
    samples: int = 1500
    prepare: Callable[[Path], None] | None = None
    """Makes data files that are not in the repository, given the script's folder."""
    metric: str = ""
    """A pattern of what the script prints of its success; the last match counts. Empty: the training loss."""
    higher_is_better: bool = False
    files: tuple[str, ...] = ()
    """Files beside the script's own that a mutation may change, from the repository's root."""
    is_mutated: bool = True
    seconds: float = 10.0
    """Of a processor, about. Of what may be mutated the cheap come first."""

    @property
    def file(self) -> str:
        """What is started: the script, or the script that a notebook's cells give."""
        return self.script.removesuffix(".ipynb") + ".py" if self.script.endswith(".ipynb") else self.script

    def folder(self, fetched: Path) -> Path:
        """Where the repository lies."""
        return fetched / self.repository.replace("/", "+")

    def source(self, fetched: Path, name: str) -> str:
        """One of its files; of a notebook the code, without the lines that are commands to the notebook."""
        text = (self.folder(fetched) / name).read_text()
        if not name.endswith(".ipynb"):
            return text
        cells = (cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        lines = "\n".join(cell if isinstance(cell, str) else "".join(cell) for cell in cells).splitlines()
        return "\n".join(line for line in lines if not line.startswith(("%", "!"))) + "\n"

    @property
    def key(self) -> str:
        """Short, for tables."""
        owner = self.repository.partition("/")[2]
        name = self.script.removesuffix(".py").removesuffix(".ipynb").replace("/main", "").split("/")[-1]
        return f"{owner}:{name}{' ' + self.args if self.args else ''}"
