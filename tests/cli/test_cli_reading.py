"""list, show, diagnose, get, query, doctor: what they say, and what they exit with."""

import csv
import dataclasses
import io
import json

import pytest

from stethoscope.record import Severity
from stethoscope.views.common.styled_text import cell_width
from tests.store.run_making import write_findings
from tests.views import synthetic

pytestmark = pytest.mark.usefixtures("given_diagnosis")


def strict(text):
    """Parses JSON, refusing what only Python would take."""

    def refuse(word):
        raise AssertionError(f"not JSON: {word}")

    return json.loads(text, parse_constant=refuse)


def test_list_shows_state_step_loss_and_what_was_found(cli, healthy, sick):
    write_findings(sick, [synthetic.CAUSE])
    code, out, _ = cli("list")
    head, first, second = out.splitlines()
    assert code == 0
    assert head.split() == ["run", "id", "started", "step", "loss", "found"]
    assert first.startswith("□ gpt-small  aaaaaa  20")
    assert first.split()[-5:] == ["200", "1.61", "not", "diagnosed", "yet"]
    assert second.startswith("✕ gpt-fp16   3f9a01  20")
    assert second.split()[-4:-1] == ["200", "NaN", "◆"]
    assert "exploding_gradients".startswith(second.split()[-1])
    assert max(map(len, out.splitlines())) <= 80


def test_list_names_the_cause_and_not_the_worst_that_followed(cli, sick):
    cause = dataclasses.replace(synthetic.CAUSE, code="attention_logit_growth", severity=Severity.WARNING)
    write_findings(sick, [cause, *synthetic.FOLLOWED])
    line = cli("list", "--width", 100)[1].splitlines()[1]
    assert line.split()[-2:] == ["▲", "attention_logit_growth"]
    assert line.split()[3].startswith("20")
    narrow = cli("list")[1].splitlines()[1]
    assert narrow.split()[-1] == "attention_logit_growth"
    assert len(narrow.split()[3]) == len("11-16")
    cut = cli("list", "--width", 60)[1].splitlines()[1]
    assert "…" in cut.split()[-1]
    assert len(cut) <= 60


def test_the_list_says_of_an_examined_run_what_its_verdict_says(cli, healthy):
    write_findings(healthy, [])
    assert cli("list", "--width", 100)[1].splitlines()[1].endswith("? cannot tell")
    assert cli("list", "--ascii")[1].splitlines()[1].endswith("? cannot tell")
    assert strict(cli("list", "--json")[1])["runs"][0]["verdict"] == "cannot_tell"
    assert cli("show")[1].splitlines()[1] == "? cannot tell"


def test_list_json(cli, healthy, sick):
    body = strict(cli("list", "--json")[1])
    assert body["schema_version"] == 1
    assert [run["id"] for run in body["runs"]] == ["aaaaaa", "3f9a01"]
    assert body["runs"][1]["loss"] == "NaN"
    assert [run["state"] for run in body["runs"]] == ["finished", "crashed"]


def test_no_runs_is_exit_3_and_says_what_to_do(cli, base):
    for command in ("list", "show", "diagnose"):
        code, out, err = cli(command)
        assert (code, out) == (3, "")
        assert err == f"stethoscope: No runs here yet: {base}\nWatch a training script, or try: stethoscope demo\n"


def test_show_healthy_is_calm(cli, healthy):
    code, out, _ = cli("show")
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "□ gpt-small  aaaaaa  finished at step 200"
    assert lines[1] == "? cannot tell"
    assert "  lr             " + "▁" * 26 + " " * 16 + "5.62 × 10⁻⁴" in lines
    (row,) = [line for line in lines if line.startswith("  head") and line.endswith("usual")]
    assert row.split()[1] == "▃" * 26
    assert "20 of 20 tensors recorded · 200 steps read" in out
    assert "Recording: 0.84 ms a step (0.7% of these 120 ms steps)" in out
    assert not set(out) & set("░▒█╳∞") - {"█"}


def test_show_sick_marks_the_layer_in_table_and_picture(cli, sick):
    out = cli("show")[1]
    lines = out.splitlines()
    assert lines[0] == "✕ gpt-fp16  3f9a01  crashed at step 200, FloatingPointError"
    assert lines[1] == "◆ The gradient of layers.2.attn grew without bound from step 150."
    assert lines[2] == "  ① exploding_gradients  since step 150  3 consequences"
    assert len([line for line in lines if line.startswith("◆ layers.2.attn")]) == 2


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("extra", [(), ("--ascii",), ("--value",), ("--depth", "1"), ("--kind", "weight")])
def test_show_fits_the_width(cli, sick, width, extra):
    code, out, _ = cli("show", "--width", width, *extra)
    assert code == 0
    assert max(map(cell_width, out.splitlines())) <= width
    assert out.isascii() == (extra == ("--ascii",))


def test_show_steps_layers_and_stat(cli, sick):
    out = cli("show", "--steps", "100:149", "--layers", "layers.2.*", "--depth", 9, "--stat", "abs_max")[1]
    assert "gradient abs_max" in out
    assert "layers.2.attn.weight" in out
    assert "layers.1" not in out
    assert "╳" not in out


def test_show_json(cli, sick):
    body = strict(cli("show", "--json")[1])
    assert body["schema_version"] == 1
    assert body["metrics"]["loss"]["last"] == "NaN"
    assert {layer["name"]: layer["last"] for layer in body["layers"]}["head"] == "NaN"
    assert body["diagnosis"]["causes"][0]["code"] == "exploding_gradients"


def test_diagnose_exits_1_on_findings_and_0_without(cli, healthy, sick):
    code, out, _ = cli("diagnose", "3f9a")
    assert code == 1
    assert out.splitlines()[2] == "◆ critical  exploding_gradients  96% sure  trouble, cause known"
    assert out.splitlines()[-1] == "next  stethoscope show 3f9a01 --layers 'layers.2.attn*' --depth 4"
    assert cli("diagnose", "gpt-small")[0] == 0
    assert "╳" not in cli("diagnose", "3f9a", "--no-heatmap")[1].split("what followed")[1]


@pytest.mark.parametrize(("level", "code"), [("info", 1), ("warning", 1), ("critical", 1)])
def test_fail_on(cli, sick, level, code):
    assert cli("diagnose", "--fail-on", level)[0] == code


def test_fail_on_a_level_above_what_was_found(cli, healthy, monkeypatch):
    import stethoscope.explain
    from stethoscope.explain.diagnosis import Diagnosis

    for found, expected in ((synthetic.FOLLOWED[1], (1, 1, 0)),):
        monkeypatch.setattr(stethoscope.explain, "diagnose", lambda run, f=found: Diagnosis((f,), (f,)))
        codes = tuple(cli("diagnose", "--fail-on", level)[0] for level in ("info", "warning", "critical"))
        assert codes == expected


def test_diagnose_json_is_strict_json(cli, sick):
    code, out, _ = cli("diagnose", "--json")
    body = strict(out)
    assert code == 1
    assert body["schema_version"] == 1
    assert body["run"]["state"] == "crashed"
    assert body["causes"][0]["evidence"][2]["value"] == "NaN"
    assert body["causes"][0]["followed"][0]["code"] == "clipping_always_on"


def test_github_annotations_and_markdown(cli, sick, healthy):
    out = cli("diagnose", "3f9a01", "--github")[1]
    assert out == (
        "::error title=exploding_gradients::The gradient of layers.2.attn grew without bound from step 150. "
        "(since step 150, run 3f9a01)%0ATry: torch.nn.utils.clip_grad_norm_("
        "model.layers[2].parameters(), 1.0)\n"
    )
    assert cli("diagnose", "aaaaaa", "--github")[1].startswith("::notice title=stethoscope::cannot tell: ")
    text = cli("diagnose", "3f9a01", "--markdown")[1]
    assert text.startswith("### Stethoscope: gpt-fp16\n\n**Critical** `exploding_gradients`, since step 150, 96% sure")
    assert "| loss | 1.66 | **NaN** |" in text
    assert "1. step 171: Clipping leaves" in text


def test_get_one_series_many_and_metrics(cli, sick):
    code, out, _ = cli("get", "latest", "loss", "--steps", "184:185")
    assert (code, out) == (0, "      step  loss metric\n       184  1.64\n       185  7.86\n")
    many = cli("get", "latest", "layers.*.attn.*", "gradient")[1].splitlines()
    assert len(many) == 5
    assert many[3].startswith("layers.2.attn.weight  ")
    assert many[3].split()[-3:] == ["0.361", "36.0", "NaN"]


def test_get_csv_and_json_hold_every_value(cli, sick):
    rows = list(csv.DictReader(io.StringIO(cli("get", "latest", "head.weight", "gradient", "norm", "--csv")[1])))
    assert len(rows) == 200
    assert rows[0].keys() == {"step", "site", "kind", "stat", "value"}
    assert float(rows[0]["value"]) == pytest.approx(0.32, rel=0.2)
    body = strict(cli("get", "latest", "head.weight", "gradient", "norm", "--json", "--steps", "189:190")[1])
    assert body["series"][0]["steps"] == [189, 190]
    assert body["series"][0]["values"][1] == "NaN"


def test_get_nothing_is_exit_3(cli, sick):
    code, _, err = cli("get", "latest", "nowhere.*")
    assert code == 3
    assert err.startswith("stethoscope: Nothing recorded matches: nowhere.*\n")


def test_unknown_statistic_is_exit_2_and_names_the_known(cli, sick):
    code, _, err = cli("show", "--stat", "entropy")
    assert code == 2
    assert "Unknown statistic: entropy" in err
    assert "kurtosis" in err


def test_query(cli, sick):
    pytest.importorskip("duckdb")
    code, out, _ = cli("query", "latest", "select count(*) as n, max(step) as last from rows")
    assert code == 0
    assert out.splitlines()[0].split() == ["n", "last"]
    assert out.splitlines()[1].split() == ["4,000", "200"]
    code, _, err = cli("query", "select nonsense from rows")
    assert code == 2
    assert err.startswith("stethoscope: The query failed: ")
    assert "\\n" not in err
    body = strict(cli("query", "select distinct kind from sites order by kind", "--json")[1])
    assert body["schema_version"] == 1
    assert body["rows"] == [{"kind": "gradient"}, {"kind": "weight"}]


def test_doctor_without_a_run(cli, base):
    code, out, _ = cli("doctor")
    assert code == 0
    assert "writable" in out
    # A long path is wrapped at the width of the screen: read it as one word.
    assert f"runs{base}" in "".join(out.split())
    assert out.splitlines()[-1].strip() == "0 runs, writable"
    body = strict(cli("doctor", "--json")[1])
    assert {"stethoscope", "python", "kernels", "numpy", "torch"} <= {f["what"] for f in body["installation"]}


def test_doctor_says_where_runs_cannot_be_written(cli, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("STETHOSCOPE_DIR", str(tmp_path / "file" / "runs"))
    out = cli("doctor")[1]
    assert "▲" in out
    assert "is not a folder" in " ".join(out.split())


def test_doctor_of_a_run(cli, sick):
    code, out, _ = cli("doctor", sick)
    assert code == 0
    assert "▲ state           crashed at step 200, FloatingPointError" in out
    assert "  tensors         20 of 20 recorded" in out
    assert "  damage          none, every checksum matches" in out
    assert "  cost            0.84 ms a step (0.7% of these 120 ms steps)" in out
    assert out.endswith("  log more to detect more\n  · One more line.\n")
    assert strict(cli("doctor", sick, "--json")[1])["unmet_needs"] == ["One more line."]


def test_the_command_to_paste_is_quoted(sick):
    import dataclasses
    import shlex

    from stethoscope.cli.diagnose import next_command
    from stethoscope.explain.diagnosis import Diagnosis
    from stethoscope.store import open_run

    with open_run(sick) as run:
        for site, expected in (("a';reboot;'.b", "a';reboot;'*"), ("x\x1b[2J.y", None), ("(loss)", None)):
            cause = dataclasses.replace(synthetic.CAUSE, sites=(site,))
            words = shlex.split(next_command(run, Diagnosis((cause,), (cause,))))
            assert words[:3] == ["stethoscope", "show", "3f9a01"]
            assert words[3:5] == ([] if expected is None else ["--layers", expected])
