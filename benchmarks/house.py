"""What a newcomer has to take in: files, lines, classes, names, complexity, second ways to do one thing.

`python -m benchmarks.house [REV ...]` counts the package as it stands at each revision (default: the work tree), side
by side, then its statements room by room. Everything is counted from the syntax tree; nothing is imported. A revision is
formatted before lines are counted, all by the same settings, so that a change of the format is no change of the code.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

PACKAGE = "src/stethoscope"
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.With,
    ast.IfExp,
    ast.comprehension,
    ast.BoolOp,
    ast.Match,
)
FACES = ("terminal", "tui", "server", "pagedata", "report", "notebook", "export", "motion")
CAST_TO_RUN = re.compile(r"cast\(\"?Run\"?,")
Functions = list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]


def sources(revision: str) -> dict[str, str]:
    """Every Python file of the package, by its path inside it."""
    if revision == "work tree":
        return {str(p.relative_to(PACKAGE)): p.read_text() for p in Path(PACKAGE).rglob("*.py")}
    packed = subprocess.run(["git", "archive", revision, PACKAGE], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        members = [m for m in archive.getmembers() if m.name.endswith(".py")]
        return {m.name.removeprefix(PACKAGE + "/"): archive.extractfile(m).read().decode() for m in members}  # type: ignore[union-attr]


def formatted(files: dict[str, str]) -> dict[str, str]:
    """Every file as `ruff format` writes it, without regard to what a comment exempts from it."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(re.sub(r"# fmt: (skip|off|on)", "", text))
        settings = ("--isolated", "--line-length", "120", "--target-version", "py311")
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *settings, folder], check=True)
        return {name: Path(folder, name).read_text() for name in files}


def is_docstring(node: ast.AST) -> bool:
    """A bare string: of a module, a class, a function or a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def num_statements(tree: ast.AST) -> int:
    """Statements, however they are laid out; docstrings are none."""
    return sum(isinstance(node, ast.stmt) and not is_docstring(node) for node in ast.walk(tree))


def num_prose_lines(text: str, tree: ast.AST) -> int:
    """Lines of docstrings and of comments that have a line to themselves."""
    docs = sum((n.end_lineno or 0) - n.lineno + 1 for n in ast.walk(tree) if is_docstring(n))  # type: ignore[attr-defined]
    return docs + sum(line.lstrip().startswith("#") for line in text.splitlines())


def complexity(function: ast.AST) -> int:
    """One, and one more for each place where the way parts."""
    return 1 + sum(isinstance(node, BRANCHES) for node in ast.walk(function))


def count(files: dict[str, str]) -> dict[str, str]:
    """The figures of one revision."""
    trees = {name: ast.parse(text) for name, text in files.items()}
    blank = sum(not line.strip() for text in files.values() for line in text.splitlines())
    prose = sum(num_prose_lines(text, trees[name]) for name, text in files.items())
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    functions = [n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    plain = [f.name for f in functions if not f.name.startswith("__")]
    lengths = [text.count("\n") for text in files.values()]
    whole = "\n".join(files.values())
    words = Counter(re.findall(r"\w+", whole))
    once = sum(used_once(text, trees[name]) for name, text in files.items())
    config = next((n for n in nodes if isinstance(n, ast.ClassDef) and n.name == "DebugConfig"), None)
    wordless = [len(name.strip("_").split("_")) == 1 for name in plain]
    return {
        "files": f"{len(files):,}",
        "lines": f"{sum(lengths):,}",
        "of them docstrings and comments": f"{prose:,}",
        "of them code": f"{sum(lengths) - blank - prose:,}",
        "statements": f"{sum(map(num_statements, trees.values())):,}",
        "median file / largest": f"{statistics.median(lengths):.0f} / {max(lengths)}",
        "classes": f"{sum(isinstance(n, ast.ClassDef) for n in nodes):,}",
        "functions": f"{len(functions):,}",
        "functions over 60 lines": f"{sum((f.end_lineno or 0) - f.lineno > 60 for f in functions)}",
        "complexity over 10": f"{100 * sum(complexity(f) > 10 for f in functions) / len(functions):.1f}%",
        "private functions used once": f"{100 * once / len(plain):.0f}%",
        "mean length of a function's name": f"{statistics.mean(len(n.strip('_')) for n in plain):.1f}",
        "one-word function names": f"{100 * sum(wordless) / len(plain):.0f}%",
        "public names at the top": f"{len(public_names(trees['__init__.py']))}",
        "config fields": f"{sum(isinstance(n, ast.AnnAssign) for n in config.body) if config else 0}",
        "modules that rank findings": f"{len(rankers(trees))}",
        "objects cast to Run": f"{len(CAST_TO_RUN.findall(whole))}",
        "imports between faces": f"{len(between_faces(trees))}",
        "of them imports of the page's data": f"{sum('.pagedata' in one for one in between_faces(trees))}",
        "the word place(s)": f"{words['place'] + words['places']:,}",
    }


def used_once(text: str, tree: ast.Module) -> int:
    """How many private functions of a file it names once besides their definition."""
    words = Counter(re.findall(r"\w+", text))
    functions = [n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return sum(name.startswith("_") and not name.startswith("__") and words[name] == 2 for name in functions)


def public_names(tree: ast.Module) -> list[str]:
    """The names in the package's table `_NAMES`, from a module to what lives in it."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_NAMES":
            return [name for names in ast.literal_eval(node.value).values() for name in names.split()]
    return []


def imported(tree: ast.Module) -> list[tuple[str, tuple[str, ...]]]:
    """Modules and the names taken from each."""
    return [
        (node.module or "", tuple(alias.name for alias in node.names))
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    ]


def rankers(trees: dict[str, ast.Module]) -> list[str]:
    """Files that make causes of findings themselves, instead of taking the verdict."""
    return [
        name
        for name, tree in trees.items()
        if any(
            module == "stethoscope.explain.ranking" and {"split", "rank_causes"} & set(names)
            for module, names in imported(tree)
        )
    ]


def between_faces(trees: dict[str, ast.Module]) -> list[str]:
    """Imports of one face by another."""
    found = []
    for name, tree in trees.items():
        own = name.split("/")[1].removesuffix(".py") if name.startswith("views/") else ""
        for module, _ in imported(tree):
            other = module.split(".")[2] if module.startswith("stethoscope.views.") else ""
            if own in FACES and other in FACES and own != other:
                found.append(f"{name} -> {module}")
    return found


def by_room(files: dict[str, str]) -> Counter[str]:
    """Statements of each folder at the top, those of loose files together."""
    found: Counter[str] = Counter()
    for name, text in files.items():
        found[name.partition("/")[0] if "/" in name else "(files at the top)"] += num_statements(ast.parse(text))
    return found


def num_words(revision: str) -> str:
    """Words that ARCHITECTURE.md explains."""
    if revision == "work tree":
        text = Path("ARCHITECTURE.md").read_text()
    else:
        command = ["git", "show", f"{revision}:ARCHITECTURE.md"]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = text.partition("## Words")[2].count("\n| ")
    return f"{rows - 2}" if rows else "no glossary"


def print_table(heads: list[str], rows: list[list[str]]) -> None:
    """As Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        print("| " + " | ".join(row) + " |")


def main() -> int:
    """Prints the figures of each revision beside each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revisions", nargs="*", default=["work tree"])
    revisions = parser.parse_args().revisions
    trees = [formatted(sources(revision)) for revision in revisions]
    counted = [
        count(files) | {"words of the glossary": num_words(revision)}
        for revision, files in zip(revisions, trees, strict=True)
    ]
    print_table(["", *revisions], [[row, *(figures[row] for figures in counted)] for row in counted[0]])
    rooms = [by_room(files) for files in trees]
    print()
    names = sorted({name for found in rooms for name in found})
    print_table(["statements", *revisions], [[name, *(f"{found[name]:,}" for found in rooms)] for name in names])
    return 0


if __name__ == "__main__":
    sys.exit(main())
