import json
import math

import pytest

from stethoscope.record import plural
from stethoscope.views.common import numbers
from stethoscope.views.common.styled_text import cell_width, cut_middle, flow_parts, name_text, to_text, wrap


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (13.0, "13.0"),
        (7827.3, "7,827"),
        (0.2034, "0.203"),
        (5.62e-4, "5.62 × 10⁻⁴"),
        (0.001, "0.00100"),
        (0.00099999, "0.00100"),
        (0, "0"),
        (-2.5, "-2.50"),
        (999.96, "1,000"),
        (123456.0, "123,456"),
        (1.5e9, "1.50 × 10⁹"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
        (None, ""),
        (9.999, "10.0"),
        (1.0, "1.00"),
    ],
)
def test_number_has_three_significant_digits(value, text):
    assert numbers.number(value) == text


def test_json_has_null_where_a_float_is_none():
    body = {"a": [1.5, math.nan, (math.inf, "x")], "b": None, "c": {"d": -math.inf}}
    assert json.loads(numbers.strict_json(body)) == {"a": [1.5, None, [None, "x"]], "b": None, "c": {"d": None}}


def test_number_in_ascii_is_ascii():
    assert numbers.number(5.62e-4, ascii=True) == "5.62e-4"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.2, "×12"),
        (8.9, "×8.9"),
        (1 / 6, "1/6"),
        (1.4, "usual"),
        (0.7, "usual"),
        (1.5, "×1.5"),
        (0, "0"),
        (2e7, "×10⁷"),
        (1234.0, "×1,230"),
        (math.nan, "NaN"),
        (None, ""),
        (math.inf, "×Inf"),
        (5e-324, "1/10³⁰⁸"),
    ],
)
def test_ratio_says_usual_within_half_as_much_again(value, text):
    assert numbers.ratio(value) == text


def test_sizes_shares_and_spans_of_time():
    assert [numbers.size(n) for n in (0, 999, 1000, 123_456_789, 2_000_000_000_000)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 MB",
        "2.0 TB",
    ]
    assert [numbers.percent(p) for p in (0.96, 0.007, 0, 1e-5)] == ["96%", "0.7%", "0%", "under 0.1%"]
    assert [numbers.duration(s) for s in (5, 1291, 6540, 90_000)] == [
        "5 s",
        "21 min 31 s",
        "1 h 49 min",
        "1 d 1 h",
    ]
    assert [plural(n, "row") for n in (0, 1, 1204)] == ["0 rows", "1 row", "1,204 rows"]


def test_names_are_cut_in_the_middle_to_cells_not_characters():
    assert cut_middle("layers.7.attn.qkv", 10) == "layer….qkv"
    assert cut_middle("layers.7.attn.qkv", 10, ascii=True) == "laye...qkv"
    wide = cut_middle("層" * 20, 11)
    assert cell_width(wide) <= 11
    assert wide == "層層…層層"


def test_control_bidi_and_escape_characters_never_reach_the_terminal():
    hostile = "evil\x1b[2J\x07\u202eabc\x00\r\n\x9b31m"
    text = name_text(hostile)
    assert all(char.isprintable() for char in text)
    assert text == r"evil\x1b[2J\x07\u202eabc\x00\r\n\x9b31m"
    assert name_text("層", ascii=True) == r"\u5c64"


def test_words_wrap_and_long_words_are_broken_not_lost():
    assert wrap("one two three", 7) == ["one two", "three"]
    assert wrap("a" * 12, 5) == ["aaaaa", "aaaaa", "aa"]
    assert wrap("", 5) == [""]


def test_painting_uses_named_colors_and_plain_text_has_no_escape():
    line = [("a", "bold red"), (" b", ""), ("c  ", "bright_black")]
    assert to_text([line]) == "a bc\n"
    assert to_text([line], color=True) == "\x1b[1;31ma\x1b[0m b\x1b[90mc  \x1b[0m\n"


def test_flow_breaks_between_parts():
    parts = [[("aaaa", "")], [("bbbb", "")], [("cccc", "")]]
    assert to_text(flow_parts(parts, 10)) == "aaaa  bbbb\ncccc\n"
