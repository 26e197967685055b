"""Data files that a repository does not have, made small: each function is given the folder of the script."""

from __future__ import annotations

import argparse
import collections
import pickle
import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image


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


def cora_as_csv(folder: Path) -> None:
    """The same papers where another script looks for them, as `cora/cora.content` and `cora/cora.cites`."""
    into = folder / "cora"
    into.mkdir()
    dice = random.Random(0)
    fields = [dice.randrange(7) for _ in range(2708)]
    lines = []
    for one, field in enumerate(fields):
        words = [int(dice.random() < (0.2 if number % 7 == field else 0.02)) for number in range(140)]
        lines.append("\t".join([str(one), *map(str, words), f"field{field}"]))
    (into / "cora.content").write_text("\n".join(lines) + "\n")
    pairs = [(dice.randrange(2708), dice.randrange(2708)) for _ in range(20000)]
    near = [f"{a}\t{b}" for a, b in pairs if fields[a] == fields[b] or dice.random() < 0.05]
    (into / "cora.cites").write_text("\n".join(near) + "\n")


def text_as_input_txt(folder: Path) -> None:
    """`input.txt`, with the words that the script asks its model to go on from."""
    (folder / "input.txt").write_text("O God, O God!\n" * 5 + _sentences(2000, 0))


def translations(folder: Path) -> None:
    """What the preprocessing writes: pairs of sentences and both vocabularies, pickled."""
    words = sorted(set(_sentences(400, 0).split()))
    foreign = {word: f"{word[::-1]}en" for word in words}

    def field(names: list[str]) -> argparse.Namespace:
        numbers = {word: at for at, word in enumerate(["<blank>", "<unk>", "<s>", "</s>", *names])}
        vocab = collections.UserDict(numbers)
        vocab.stoi = numbers
        return argparse.Namespace(vocab=vocab)

    def pairs(num: int, seed: int) -> list[argparse.Namespace]:
        sentences = [line.split() for line in _sentences(num, seed).splitlines()]
        return [argparse.Namespace(src=one, trg=[foreign[word] for word in reversed(one)]) for one in sentences]

    data = {
        "settings": argparse.Namespace(max_len=20),
        "vocab": {"src": field(words), "trg": field(sorted(foreign.values()))},
        "train": pairs(1600, 1),
        "valid": pairs(160, 2),
    }
    (folder / "data.pkl").write_bytes(pickle.dumps(data))


def discs(folder: Path) -> None:
    """`data/imgs` and `data/masks`: discs before noise, and where they are."""
    dice = np.random.RandomState(0)
    across = np.arange(48)
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for number in range(60):
        x, y, radius = dice.randint(12, 36), dice.randint(12, 36), dice.randint(5, 12)
        mask = (across[:, None] - y) ** 2 + (across[None] - x) ** 2 < radius**2
        picture = dice.randint(0, 100, (48, 48, 3)) + 120 * mask[..., None] * dice.rand(3)
        Image.fromarray(picture.astype(np.uint8)).save(folder / "data" / "imgs" / f"{number:03}.png")
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "data" / "masks" / f"{number:03}.png")


def short_sound(folder: Path) -> None:
    """The recording of the repository, its first half second."""
    from scipy.io import wavfile

    path = folder.parent / "data" / "gt_bach.wav"
    rate, samples = wavfile.read(path)
    wavfile.write(path, rate, samples[:8000])


def sphere(folder: Path) -> None:
    """`sphere.xyz`: points of a surface, with normals."""
    directions = np.random.RandomState(0).randn(20000, 3)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    np.savetxt(folder / "sphere.xyz", np.hstack([0.8 * directions, directions]))
