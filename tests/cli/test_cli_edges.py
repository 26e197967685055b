"""Bad paths, odd runs, pipes, and what must never be removed."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stethoscope.record import Kind, Site, SiteInfo
from stethoscope.store import RunWriter
from tests.views import synthetic
from tests.views.synthetic import write_run

SRC = Path(__file__).parents[2] / "src"


def shell(*words, base, env=None, **options):
    """The command in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
    environment |= {"STETHOSCOPE_DIR": str(base), "PYTHONPATH": str(SRC), "PYTHONUTF8": "1"} | (env or {})
    return subprocess.run(
        [sys.executable, "-m", "stethoscope", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )


@pytest.mark.usefixtures("given_diagnosis")
class TestChoosingARun:
    def test_by_path_id_prefix_name_and_none(self, cli, healthy, sick):
        for word in (sick, "3f9a01", "3f9", "gpt-fp16", "gpt-f", "latest", sick.name, None):
            code, out, _ = cli("show", *([] if word is None else [word]))
            assert code == 0
            assert "3f9a01" in out.splitlines()[0]

    def test_a_prefix_of_two_is_refused_by_name(self, cli, healthy, sick):
        code, _, err = cli("show", "gpt-")
        assert code == 2
        assert "2 runs begin like this: gpt-" in err
        assert sick.name in err

    def test_no_such_run_and_no_run_folder(self, cli, healthy, tmp_path):
        code, _, err = cli("show", "nonsense\x1b[2J")
        assert code == 2
        assert err.splitlines()[0] == r"stethoscope: There is no such run: nonsense\x1b[2J"
        code, _, err = cli("show", tmp_path)
        assert code == 2
        assert err.startswith("stethoscope: This is not a run folder: ")

    def test_newer_format_is_refused(self, cli, healthy):
        from stethoscope.store.runfile import dump

        (healthy / "run.json").write_bytes(dump({"format_version": 99, "id": "x"}))
        code, _, err = cli("diagnose", healthy)
        assert code == 2
        assert "The run has format 99" in err
        assert cli("list")[0] == 0

    def test_damaged_description(self, cli, healthy):
        path = healthy / "run.json"
        path.write_bytes(path.read_bytes().replace(b"gpt-small", b"gpt-smell"))
        code, _, err = cli("show", healthy)
        assert code == 2
        assert "checksum" in err
        code, out, _ = cli("list", "--width", 120)
        assert code == 0
        assert "does not match its own checksum" in out


@pytest.mark.usefixtures("given_diagnosis")
class TestOddRuns:
    def test_an_empty_run_is_exit_3(self, cli, base):
        write_run(base / "20261116-120000-empty-000000", steps=range(0), name="empty")
        for command in ("show", "diagnose"):
            code, _, err = cli(command)
            assert code == 3
            assert err.startswith("stethoscope: The run holds no data: ")
        assert cli("list")[0] == 0
        assert "without a step" in cli("doctor", "empty")[1]

    def test_a_live_run(self, cli, base):
        write_run(base / "20261116-120000-going-111111", name="going", ended=None)
        out = cli("show")[1]
        assert out.splitlines()[0] == "● going  111111  live, step 200"
        assert cli("list", "--ascii")[1].splitlines()[1].startswith("* going")

    def test_a_damaged_run_says_so_and_still_shows(self, cli, healthy):
        (journal,) = (healthy / "rank-0").glob("*.stj")
        data = bytearray(journal.read_bytes())
        data[len(data) // 2] ^= 0xFF
        journal.write_bytes(data)
        code, out, _ = cli("show", healthy)
        assert code == 0
        assert out.startswith("▨ gpt-small")
        assert "cannot be read" in out.splitlines()[0]
        assert "▲ damage" in cli("doctor", healthy)[1]

    def test_one_step_and_one_site(self, cli, base):
        write_run(base / "r", steps=range(1, 2), modules=["only"])
        assert cli("show", "r")[0] == 0

    def test_metrics_without_rows(self, cli, base):
        write_run(base / "r", lambda site, step: None)
        code, out, _ = cli("show")
        assert code == 0
        assert "loss" in out
        assert "Nothing recorded here of kind gradient." in out

    def test_hostile_names_everywhere(self, cli, base):
        evil = "e\x1b]0;owned\x07\u202e`|<b>" + "z" * 90
        infos = [SiteInfo(Site(evil, Kind.GRADIENT, "weight"), (8, 8), "float32", 64)]
        write_run(base / "r", infos=infos, name=evil, metrics=lambda step: {"loss": 1.0, evil: 2.0 * step})
        for words in (
            ["list"],
            ["show"],
            ["diagnose"],
            ["get", "latest", "*"],
            ["doctor", "latest"],
            ["diagnose", "--markdown"],
            ["diagnose", "--github"],
            ["get", "latest", "e*", "--csv"],
        ):
            code, out, err = cli(*words)
            assert code == 0, err
            assert all(char.isprintable() or char == "\n" for char in out), words

    def test_several_ranks_merge(self, cli, base):
        folder = base / "20261116-120000-ranks-222222"
        infos = synthetic.sites_of(["a"], (Kind.GRADIENT,))
        for rank in range(2):
            writer = RunWriter.create(folder, {"name": "ranks"}, rank=rank, world_size=2)
            writer.sites(infos)
            for step in range(4):
                writer.rows(step, [0], synthetic.row(3.0 if rank else 4.0)[None])
            writer.close()
        assert "5.00" in cli("get", "ranks", "a.weight")[1].split()
        assert "3.00" in cli("get", "ranks", "a.weight", "--rank", 1)[1].split()


class TestRemoving:
    def test_rm_removes_only_what_was_named(self, cli, healthy, sick):
        code, out, _ = cli("rm", "aaaaaa", "--yes")
        assert code == 0
        assert out.splitlines()[-1].startswith("Removed 1 run, ")
        assert not healthy.exists()
        assert sick.exists()
        assert [path.name for path in sick.parent.iterdir()] == [sick.name]

    def test_rm_asks_and_without_anyone_to_ask_refuses(self, cli, healthy, monkeypatch):
        import io

        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        code, _, err = cli("rm", "aaaaaa")
        assert code == 2
        assert "Add --yes" in err
        assert healthy.exists()

        class Terminal(io.StringIO):
            def isatty(self):
                return True

        monkeypatch.setattr("sys.stdin", Terminal("no\n"))
        assert cli("rm", "aaaaaa")[0] == 0
        assert healthy.exists()
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
        assert cli("rm", "aaaaaa")[0] == 0
        assert not healthy.exists()

    def test_rm_refuses_what_is_not_a_run(self, cli, healthy, tmp_path):
        precious = tmp_path / "precious"
        precious.mkdir()
        (precious / "thesis.tex").write_text("years")
        for target in (precious, precious / "thesis.tex", tmp_path, "/", tmp_path / "runs"):
            code, _, err = cli("rm", target, "--yes")
            assert code == 2, target
            assert err
        (precious / "run.json").write_text("{}")
        assert cli("rm", precious, "--yes")[0] == 2
        assert (precious / "thesis.tex").read_text() == "years"
        assert healthy.exists()

    def test_rm_refuses_links_and_foreign_files_and_live_runs(self, cli, healthy, base, tmp_path):
        link = tmp_path / "link"
        link.symlink_to(healthy)
        assert cli("rm", link, "--yes")[0] == 2
        (healthy / "notes.txt").write_text("mine")
        code, _, err = cli("rm", healthy, "--yes")
        assert code == 2
        assert "notes.txt" in err
        live = write_run(base / "20261116-120000-going-111111", name="going", ended=None)
        code, _, err = cli("rm", "going", "--yes")
        assert code == 2
        assert "The run is live" in err
        assert healthy.exists()
        assert live.exists()

    def test_rm_is_all_or_nothing(self, cli, healthy, sick):
        assert cli("rm", "aaaaaa", "unknown", "--yes")[0] == 2
        assert healthy.exists()

    def test_prune_keeps_the_newest_and_never_a_live_one(self, cli, base):
        live = write_run(base / "20261116-100000-going-111111", name="going", ended=None, steps=range(3))
        old = [write_run(base / f"20261116-11000{n}-old-00000{n}", steps=range(3)) for n in range(3)]
        past = time.time() - 90 * 86400
        for place, folder in enumerate([live, *old]):
            for path in [folder, *folder.rglob("*")]:
                os.utime(path, (past + place, past + place))
        code, out, _ = cli("prune", "--keep", 1, "--dry-run")
        assert code == 0
        assert all(folder.exists() for folder in (live, *old))
        assert "left alone: 20261116-100000-going-111111, the run is live" in out
        code, out, _ = cli("prune", "--keep", 1, "--older-than", "30d", "--yes")
        assert code == 0
        assert [folder.exists() for folder in (live, *old)] == [True, False, False, True]

    def test_prune_older_than_leaves_the_young(self, cli, healthy):
        code, out, _ = cli("prune", "--older-than", "30d", "--yes")
        assert (code, out) == (0, "Nothing to remove.\n")
        assert healthy.exists()

    def test_prune_needs_to_know_what_is_old(self, cli, healthy):
        assert cli("prune")[0] == 2
        assert cli("prune", "--older-than", "soon")[0] == 2
        assert cli("prune", "--keep", -1)[0] == 2
        assert healthy.exists()


class TestTheProcess:
    def test_help_is_quick_and_loads_no_numpy(self, base):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from stethoscope.cli import main; main(['--help']); "
                "assert not {'numpy', 'torch', 'pyarrow'} & set(sys.modules)",
            ],
            env=os.environ | {"PYTHONPATH": str(SRC)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for command in ("list", "show", "diagnose", "get", "query", "doctor", "rm", "prune", "demo"):
            assert command in done.stdout

    def test_reading_commands_never_import_torch(self, healthy, base):
        commands = [
            ["list"],
            ["show"],
            ["diagnose"],
            ["get", "latest", "loss"],
            ["doctor"],
            ["doctor", "latest"],
        ]
        code = (
            "import sys\nfrom stethoscope.cli import main\n"
            f"codes = [main(words) for words in {commands!r}]\n"
            "assert 'torch' not in sys.modules\nassert not set(codes) - {0, 1}, codes\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | {"PYTHONPATH": str(SRC), "STETHOSCOPE_DIR": str(base), "PYTHONUTF8": "1"},
        )
        assert done.returncode == 0, done.stderr

    def test_a_pipe_gets_no_escape_codes_and_color_can_be_forced(self, healthy, base):
        assert "\x1b" not in shell("list", base=base).stdout
        assert "\x1b[90m" in shell("list", "--color", "always", base=base).stdout

    def test_an_encoding_without_our_signs_gets_ascii(self, healthy, base):
        done = shell("list", base=base, env={"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"})
        assert done.returncode == 0
        assert done.stdout.splitlines()[1].startswith("- gpt-small")

    def test_a_reader_that_goes_away_is_no_error(self, healthy, base):
        command = f"'{sys.executable}' -m stethoscope get latest loss --csv | head -1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONPATH": str(SRC), "STETHOSCOPE_DIR": str(base)},
        )
        assert done.stdout == "step,site,kind,stat,value\n"
        assert done.stderr == ""
        assert done.returncode == 0

    @pytest.mark.skipif(not shutil.which("script"), reason="needs script(1) for a terminal")
    def test_a_terminal_gets_color_unless_no_color_is_set(self, healthy, base):
        command = f"'{sys.executable}' -m stethoscope list"
        for extra, is_painted in (({}, True), ({"NO_COLOR": "1"}, False)):
            environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
            environment |= {"PYTHONPATH": str(SRC), "STETHOSCOPE_DIR": str(base), "TERM": "xterm"} | extra
            done = subprocess.run(
                ["script", "-qec", command, "/dev/null"],
                env=environment | {"PYTHONUTF8": "1"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert ("\x1b[90m" in done.stdout) == is_painted
            assert "□ gpt-small" in done.stdout

    def test_usage_errors_are_2(self, base):
        for words in (["nonsense"], [], ["show", "--kind", "smell"], ["show", "--steps", "9:1"]):
            assert shell(*words, base=base).returncode in ((2, 3) if "9:1" in words else (2,))
