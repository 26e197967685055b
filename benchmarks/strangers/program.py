"""What is known of a fetched program: where it is, how it is started, what it prints of its own success."""

from __future__ import annotations

import dataclasses
import random
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

    @property
    def key(self) -> str:
        """Short, for tables."""
        owner = self.repository.partition("/")[2]
        name = self.script.removesuffix(".py").replace("/main", "").split("/")[-1]
        return f"{owner}:{name}{' ' + self.args if self.args else ''}"


def _sentences(num: int, seed: int) -> str:
    """Text with a grammar, so that there is something to learn."""
    dice = random.Random(seed)
    who, verbs, things = ["he", "she", "the dog", "the cat"], ["sees", "finds", "walks to"], ["house", "river", "tree"]
    lines = []
    for _ in range(num):
        adjective = dice.choice(["old ", "red ", "small ", ""])
        lines.append(f"{dice.choice(who)} {dice.choice(verbs)} the {adjective}{dice.choice(things)} .")
    return "\n".join(lines) + "\n"


def words_as_train_txt(folder: Path) -> None:
    """`data/train.txt`, a few thousand words."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.txt").write_text(_sentences(1200, 0))


def words_in_three_files(folder: Path) -> None:
    """`data/words/{train,valid,test}.txt`."""
    into = folder / "data" / "words"
    into.mkdir(parents=True, exist_ok=True)
    for seed, (name, num) in enumerate({"train": 1500, "valid": 150, "test": 150}.items()):
        (into / f"{name}.txt").write_text(_sentences(num, seed))


def shakespeare_bytes(folder: Path) -> None:
    """What a preparation of nanoGPT writes: tokens as uint16, and the vocabulary."""
    import pickle

    import numpy as np

    into = folder / "data" / "shakespeare_char"
    into.mkdir(parents=True, exist_ok=True)
    text = _sentences(3000, 0)
    chars = sorted(set(text))
    ids = np.array([chars.index(char) for char in text], dtype=np.uint16)
    ids[: len(ids) * 9 // 10].tofile(into / "train.bin")
    ids[len(ids) * 9 // 10 :].tofile(into / "val.bin")
    meta = {
        "vocab_size": len(chars),
        "itos": dict(enumerate(chars)),
        "stoi": {char: number for number, char in enumerate(chars)},
    }
    (into / "meta.pkl").write_bytes(pickle.dumps(meta))


def sine_waves(folder: Path) -> None:
    """What `generate_sine_wave.py` writes, smaller."""
    import numpy as np
    import torch

    dice = np.random.RandomState(2)
    x = np.arange(200)[None] + dice.randint(-80, 80, 20)[:, None]
    torch.save(np.sin(x / 20.0).astype("float64"), folder / "traindata.pt")


def cora(folder: Path) -> None:
    """Papers with words of their field, for the citations that are in the repository."""
    into = folder.parent / "data" / "cora"
    ids = sorted({word for line in (into / "cora.cites").read_text().splitlines() for word in line.split()}, key=int)
    dice = random.Random(0)
    lines = []
    for one in ids:
        field = dice.randrange(7)
        words = [int(dice.random() < (0.2 if number % 7 == field else 0.02)) for number in range(210)]
        lines.append("\t".join([one, *map(str, words), f"field{field}"]))
    (into / "cora.content").write_text("\n".join(lines) + "\n")
