"""From what a user typed to a run: a path, an id, the beginning of an id or name; by default the latest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stethoscope.cli.errors import NoDataError, UsageError
from stethoscope.record import RunError, RunNotFoundError, did_you_mean

if TYPE_CHECKING:
    from stethoscope.store import Run


def choose_run(word: str | None) -> Run:
    """The run that `word` names, opened."""
    from stethoscope.store import open_run

    return open_run(choose_path(word))


def choose_path(word: str | None) -> Path:
    """The folder of the run that `word` names."""
    from stethoscope.store import find_runs, latest_run
    from stethoscope.store.locate import base_folder, is_run

    base = base_folder()
    if word is None or word == "latest":
        latest = latest_run(base)
        if latest is None:
            raise NoDataError("No runs here yet", where=base, do="Watch a training script, or try: stethoscope demo")
        return latest
    path = Path(word)
    if is_run(path):
        return path
    found = _matching_folders(word, find_runs(base))
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        names = ", ".join(folder.name for folder in found[:4])
        raise UsageError(f"{len(found)} runs begin like this", where=word, do=f"Say more of it: {names}")
    if path.exists():
        raise UsageError("This is not a run folder", where=path, do="stethoscope list shows the runs there are")
    labels = sorted({label for folder in find_runs(base) for label in _run_labels(folder)})
    near = did_you_mean(word, labels)
    shown = "stethoscope list shows the runs there are"
    raise RunNotFoundError("There is no such run", where=word, do=f"{near} {shown}".strip())


def _matching_folders(word: str, folders: list[Path]) -> list[Path]:
    """Folders whose id, name or folder name is the word; else those where one begins with it."""
    known = [(folder, _run_labels(folder)) for folder in folders]
    exact = [folder for folder, labels in known if word in labels]
    return exact or [folder for folder, labels in known if any(label.startswith(word) for label in labels)]


def _run_labels(folder: Path) -> set[str]:
    """What a run can be called. A description that cannot be trusted leaves the folder's own name."""
    from stethoscope.store.runfile import load

    labels = {folder.name, folder.name.rpartition("-")[2]}
    try:
        body = load(folder)
    except RunError:
        return labels
    return labels | {str(body.get("id", "")), str(body.get("name", ""))} - {""}
