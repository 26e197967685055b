"""A run is its user's own: permissions of what is written, secrets that are not, and a fallback that nobody can plant."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from stethoscope.config import DebugConfig
from stethoscope.record import StethoscopeWarning
from stethoscope.session.location import private_temporary_folder
from stethoscope.session.redaction import MASK, command_to_record, environment_to_record
from stethoscope.store import seal
from tests.session.training import await_companion, begin, go_on

ADDRESS = "https://hooks.example.org/services/T0/B0/very-secret-token?key=abc"


def modes_under(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder.parent)): stat.S_IMODE(path.lstat().st_mode)
        for path in [folder, *folder.rglob("*")]
    }


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_folders_are_0700_and_files_0600_under_any_umask(tmp_path):
    base = tmp_path / "runs"
    session = go_on(begin(base, companion="process"), 30).session
    folder = Path(session.stop().path)
    await_companion(session)
    seal(folder, final=True)
    for name, mode in modes_under(base).items():
        expected = 0o700 if (tmp_path / name).is_dir() else 0o600
        assert mode == expected, f"{name} has mode {mode:o}"
    assert list(folder.glob("findings/*"))
    assert list(folder.glob("rows/*/*.parquet"))


def test_a_webhooks_token_reaches_no_file_of_the_run(tmp_path):
    trained = begin(tmp_path, webhook=ADDRESS)
    folder = Path(go_on(trained, 2).session.stop().path)
    for path in folder.rglob("*"):
        assert not path.is_file() or b"very-secret-token" not in path.read_bytes(), path
    assert json.loads((folder / "run.json").read_bytes())["info"]["config"]["webhook"] == "https://hooks.example.org"
    assert "very-secret-token" not in repr(DebugConfig(webhook=ADDRESS))


def test_recorded_commands_and_environments_mask_what_looks_like_a_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-token")
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "3", "--hub-token", "very-secret-token"])
    folder = Path(go_on(begin(tmp_path, record_command=True), 1).session.stop().path)
    said = (folder / "run.json").read_text()
    assert "very-secret-token" not in said
    assert "--hub-token" in said
    assert command_to_record(["a", "--api-key=b", "--password", "--lr", "3", "TOKEN=c", "http://u:p@h/x"]) == [
        "a",
        f"--api-key={MASK}",
        "--password",
        "--lr",
        "3",
        f"TOKEN={MASK}",
        f"http://{MASK}@h/x",
    ]
    assert environment_to_record(
        {"DB": "postgres://me:pw@host/db", "HOME": "/home/me", "AWS_SECRET_ACCESS_KEY": "x"}
    ) == {
        "DB": f"postgres://{MASK}@host/db",
        "HOME": "/home/me",
        "AWS_SECRET_ACCESS_KEY": MASK,
    }


@pytest.mark.parametrize("planted", ["link", "open folder", "file", "nothing"])
def test_the_temporary_fallback_is_private_whatever_lies_there(tmp_path, monkeypatch, planted):
    spare, elsewhere = tmp_path / "tmp", tmp_path / "of-somebody-else"
    spare.mkdir()
    elsewhere.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spare))
    place = spare / f"stethoscope-{os.getuid()}"
    if planted == "link":
        place.symlink_to(elsewhere)
    elif planted == "open folder":
        place.mkdir()
        place.chmod(0o777)
    elif planted == "file":
        place.write_text("")
    found = private_temporary_folder()
    assert found is not None
    assert stat.S_IMODE(found.lstat().st_mode) == 0o700
    assert not found.is_symlink()
    assert (found == place) == (planted == "nothing")
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(StethoscopeWarning, match="cannot be written"):
        trained = begin(tmp_path / "file" / "runs")
    go_on(trained, 2).session.stop()
    assert not list(elsewhere.iterdir())
