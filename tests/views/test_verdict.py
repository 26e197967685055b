"""The verdict as a person reads it."""

import dataclasses
import math

import pytest

from stethoscope.detect.symptoms import Symptom
from stethoscope.explain import State, Suspect, Verdict, conclude
from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.record import Evidence, Finding, Severity
from stethoscope.store import open_run
from stethoscope.views.common.styled_text import cell_width
from stethoscope.views.terminal import render_diagnosis, render_finding, render_verdict
from tests.views import synthetic
from tests.views.synthetic import CAUSE, FOLLOWED, write_run

LOOKED = LookedAt(num_sites=148, num_sites_expected=148, num_steps=10_000, first_step=1, last_step=10_000)
SICK = Diagnosis(causes=(CAUSE,), findings=(CAUSE, *FOLLOWED), followed={CAUSE.code: FOLLOWED}, looked_at=LOOKED)


@pytest.fixture
def run(tmp_path):
    path = write_run(tmp_path / "run", synthetic.exploding, metrics=synthetic.exploding_metrics)
    with open_run(path) as opened:
        yield opened


def test_the_verdict_word_for_word(run):
    assert render_verdict(SICK, run) == (
        "◆ critical  exploding_gradients  96% sure  trouble, cause known\n"
        "The gradient of layers.2.attn grew without bound from step 150.\n"
        "\n"
        "  gradient norm     0.406 → 76.8    ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▄▅█╳╳╳╳\n"
        "  clip coefficient   1.00 → 0.0124  ██████████████▇▆▅▅▄▃▂▁▁▁▁▁\n"
        "  loss               1.66 → NaN     ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁█╳╳╳╳\n"
        "\n"
        "  try  torch.nn.utils.clip_grad_norm_(model.layers[2].parameters(), 1.0)\n"
        "\n"
        "  what followed\n"
        "  ① 150  it begins in layers.2.attn.weight\n"
        "  ② 171  Clipping leaves the other layers a third of their usual gradient.\n"
        "  ③ 185  Loss jumps from 1.64 to 7.86 in one step.\n"
        "  ④ 190  NaN in layers.2.attn, then in all 10 sites.\n"
    )


def test_the_numbers_of_the_text_are_the_flags_of_the_picture(run):
    text = render_diagnosis(SICK, run)
    (flags,) = [line for line in text.splitlines() if line.split() == ["①", "②", "③", "④"]]
    (head,) = [line for line in text.splitlines() if line.startswith("  gradient  ")]
    begin = head.index("102")
    assert flags.index("①") - begin == (150 - 102) // 2
    assert flags.index("④") - begin == (190 - 102) // 2


def test_colors_are_named_ones_and_only_where_asked(run):
    plain, painted = render_diagnosis(SICK, run), render_diagnosis(SICK, run, color=True)
    assert "\x1b" not in plain
    head = "\x1b[1;31m◆ critical\x1b[0m  \x1b[90mexploding_gradients\x1b[0m  96% sure"
    assert painted.startswith(f"{head}  \x1b[90mtrouble, cause known\x1b[0m\n")
    assert "\x1b[1;31mNaN" in painted


@pytest.mark.parametrize("width", [40, 57, 80, 200])
def test_nothing_passes_the_width(run, width):
    for plain in (False, True):
        text = render_diagnosis(SICK, run, width=width, ascii=plain)
        assert max(map(cell_width, text.splitlines())) <= width
        assert text.isascii() == plain


LEARNS = Verdict(
    State.LEARNS,
    "The training loss fell from 4.45 to 1.61.",
    (Evidence("training loss", 1.61, 4.45, stat="loss"),),
    line="session.log(loss=val_loss)",
    limits="Nothing was validated.",
)
LOST = Symptom(
    "does_not_learn",
    "The loss stands at 2.3: guessing gives 2.3.",
    0,
    200,
    (Evidence("loss, against what guessing gives", 2.3, 2.3),),
    Severity.WARNING,
)
UNEXPLAINED = Verdict(
    State.UNEXPLAINED,
    LOST.message,
    LOST.evidence,
    (LOST,),
    (LOST,),
    (
        Suspect("dead units", Evidence("largest share of zeros in a layer's output (0)", 0.4), True),
        Suspect("steps too small", Evidence("size of an update, as a share of its weight", 5e-7), False, "lr=0.01"),
    ),
    "lr=0.01",
    severity=Severity.WARNING,
)


def test_what_learns_says_by_what_and_how_much_was_looked_at():
    looked = dataclasses.replace(LOOKED, num_rows_lost=15)
    assert render_verdict(Diagnosis(looked_at=looked, judged=LEARNS), ascii=True) == (
        "ok learns\n"
        "The training loss fell from 4.45 to 1.61.\n"
        "Nothing was validated.\n"
        "\n"
        "  training loss  4.45 -> 1.61\n"
        "\n"
        "  to know more  session.log(loss=val_loss)\n"
        "\n"
        "148 of 148 tensors, 10,000 steps. 15 rows lost.\n"
    )


def test_trouble_without_a_cause_says_what_is_suspected_and_what_is_ruled_out():
    assert render_verdict(Diagnosis(looked_at=LOOKED, judged=UNEXPLAINED)) == (
        "▲ trouble, cause unknown\n"
        "The loss stands at 2.3: guessing gives 2.3.\n"
        "\n"
        "  loss, against what guessing gives  2.30 → 2.30\n"
        "\n"
        "  suspected\n"
        "  steps too small: size of an update, as a share of its weight 5.00 × 10⁻⁷\n"
        "\n"
        "  ruled out\n"
        "  dead units: largest share of zeros in a layer's output (0) 0.400\n"
        "\n"
        "  next experiment  lr=0.01\n"
        "\n"
        "148 of 148 tensors, 10,000 steps.\n"
    )


def test_a_loss_that_is_in_trouble_is_not_told_to_stand_still_as_well():
    note = Finding("plateau", Severity.INFO, "The loss has stood at about 2.3 since step 40.", 40, 200)
    other = Finding("dead_units", Severity.INFO, "Two units of 0 are dead.", 40, 200)
    diagnosis = Diagnosis(findings=(note, other), looked_at=LOOKED, judged=UNEXPLAINED)
    assert diagnosis.notes == (other,)
    assert Diagnosis(findings=(note, other), looked_at=LOOKED, judged=LEARNS).notes == (note, other)


def test_a_symptom_that_the_cause_does_not_explain_is_said():
    judged = Verdict(State.TROUBLE, CAUSE.message, symptoms=(LOST,), unexplained=(LOST,), severity=CAUSE.severity)
    text = render_verdict(dataclasses.replace(SICK, judged=judged))
    assert "▲ Not explained by this: The loss stands at 2.3: guessing gives 2.3.\n" in text


@pytest.mark.parametrize("state", [State.CANNOT_TELL, State.UNEXPLAINED, State.TROUBLE])
def test_the_tick_is_for_what_learns_alone(state):
    diagnosis = Diagnosis(looked_at=LOOKED, judged=Verdict(state, "Something.", severity=Severity.WARNING))
    assert "✓" not in render_verdict(diagnosis)
    assert render_verdict(Diagnosis(looked_at=LOOKED, judged=LEARNS)).startswith("✓ learns\n")
    assert "✓" not in render_verdict(Diagnosis(looked_at=LOOKED)), "silence is no evidence"


def test_notes_alone_are_no_clean_bill():
    note = Finding("plateau", Severity.INFO, "The loss has stood at about 2.3 since step 40.", 40, 200)
    text = render_verdict(Diagnosis(findings=(note,), looked_at=LOOKED))
    assert text.startswith("? cannot tell\n")
    assert "Worth knowing\n● The loss has stood at about 2.3 since step 40.\n" in text
    assert "✓" not in text


def test_a_crash_that_nothing_explains_is_trouble(tmp_path):
    path = write_run(
        tmp_path / "run", ended="exception", body={"exception": "FloatingPointError", "message": "log of 0"}
    )
    with open_run(path) as run:
        text = render_verdict(conclude(run, [], looked_at=LOOKED), run)
    assert text.startswith("▲ trouble, cause unknown\nThe run crashed at step ")
    assert "FloatingPointError: log of 0" in " ".join(text.split())
    assert "✓" not in text


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"ended": "signal", "body": {"signal": "SIGTERM"}}, "The run was ended by SIGTERM at step 7."),
        (
            {"ended": "exception", "body": {"exception": "ValueError", "message": "bad\nmore"}},
            "The run crashed at step 7 with ValueError: bad.",
        ),
        (
            {"ended": "exception", "body": {"exception": "KeyboardInterrupt", "message": ""}},
            "The run was interrupted by hand at step 7 (KeyboardInterrupt).",
        ),
        (None, "The run's process was gone at step 7 without a word: killed, or out of memory."),
    ],
)
def test_how_a_run_ended(ended, said):
    from types import SimpleNamespace

    from stethoscope.explain.ending import ending

    assert ending(SimpleNamespace(ended=ended, last_step=7)) == said


def test_other_causes_are_rows_below_the_first():
    second = Finding("dead_units", Severity.WARNING, "38% of the units in layer3.2.relu never fire", 410, 900)
    note = Finding("plateau", Severity.INFO, "The loss has not moved for 400 steps", 6210, 6210)
    text = render_verdict(Diagnosis((CAUSE, second), (CAUSE, second, note), {}, LOOKED))
    assert text.endswith(
        "\n▲ 38% of the units in layer3.2.relu never fire\n  dead_units  since step 410\n"
        "● The loss has not moved for 400 steps\n  plateau  at step 6,210\n"
    )


def test_what_the_sentence_leaves_out_is_added_under_it():
    bare = Finding("x", Severity.WARNING, "Something is off.", 1840, 1840, sites=("a.b", "a.c", "a.d"))
    text = render_verdict(Diagnosis((bare,), (bare,)))
    assert text.splitlines()[2] == "at step 1,840, in a.b, a.c and 1 more"


def test_hostile_words_do_nothing(run):
    evil = Finding(
        "c\x1b[31m",
        Severity.CRITICAL,
        "m\x1b]0;x\x07\u202e" + "w" * 500,
        3,
        9,
        sites=("s\x1b[2J",),
        evidence=(Evidence("l\x9b", math.inf, unit="u\x1b"),),
        remedy="r\x1b[1m\nsecond",
    )
    text = render_diagnosis(Diagnosis((evil,), (evil,)), run, width=80)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert max(map(cell_width, text.splitlines())) <= 80
    assert "       second\n" in text


def test_one_line_for_a_session_to_print():
    assert render_finding(CAUSE) == (
        "◆ The gradient of layers.2.attn grew without bound from step 150.  exploding_gradients, since step 150"
    )
    assert render_finding(CAUSE, ascii=True).startswith("X The gradient")


def test_evidence_without_series_or_run_still_reads():
    found = Finding(
        "x",
        Severity.WARNING,
        "At step 1.",
        1,
        1,
        evidence=(Evidence("share", 0.38), Evidence("rate", 12.0, 3.0, unit="ms"), Evidence("none", None)),
    )
    lines = render_verdict(Diagnosis((found,), (found,))).splitlines()
    assert lines[3:] == ["  share         0.380", "  rate   3.00 → 12.0 ms"]
