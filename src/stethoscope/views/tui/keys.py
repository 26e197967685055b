"""The keys, in one table: what the screens bind, what the help shows. The same as on the page."""

from __future__ import annotations

from typing import Final, NamedTuple

from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.styled_text import NOTE, PLAIN, STRONG, Line, line_width, pad, wrap


class Key(NamedTuple):
    """Keys as Textual names them, the action they start, and both as a person reads them."""

    keys: str
    action: str
    shown: str
    words: str


KEYS: Final = (
    Key("slash", "filter", "/", "show only layers (or runs) whose name holds these words"),
    Key("ctrl+k", "command_palette", "Ctrl K", "everything by name: layers, kinds, runs"),
    Key("j,down", "row(1)", "j, down", "next row"),
    Key("k,up", "row(-1)", "k, up", "previous row"),
    Key("J,pagedown", "row(10)", "J, page down", "ten rows down"),
    Key("K,pageup", "row(-10)", "K, page up", "ten rows up"),
    Key("left", "step(-1)", "left", "one cell back"),
    Key("right", "step(1)", "right", "one cell on"),
    Key("shift+left", "step(-10)", "Shift left", "ten cells back"),
    Key("shift+right", "step(10)", "Shift right", "ten cells on"),
    Key("left_square_bracket", "event(-1)", "[", "to the event before"),
    Key("right_square_bracket", "event(1)", "]", "to the next event"),
    Key("home", "end(-1)", "Home", "to the first step, or row"),
    Key("end", "end(1)", "End", "to the last step, and follow it while the run is live"),
    Key("enter,l", "open", "Enter, l", "open the run, or the layer under the cursor"),
    Key("escape", "up", "Esc", "clear the filter, or go up"),
    Key("o", "branch", "o", "open or close a branch"),
    Key("plus,equals_sign", "zoom(0.5)", "+", "zoom in around the cursor"),
    Key("minus,underscore", "zoom(2.0)", "-", "zoom out"),
    Key("0", "fit", "0", "the whole run"),
    Key("1", "kind(0)", "1", "gradients"),
    Key("2", "kind(1)", "2", "weights"),
    Key("3", "kind(2)", "3", "updates"),
    Key("4", "kind(3)", "4", "module outputs"),
    Key("5", "kind(4)", "5", "gradients of module outputs"),
    Key("6", "kind(5)", "6", "optimizer state"),
    Key("v", "value", "v", "values instead of ratios to the row's own past, and back"),
    Key("space", "play", "space", "live: hold still or go on; finished: play the steps"),
    Key("w", "why", "w", "every cause in full"),
    Key("x", "select", "x", "mark a run to compare"),
    Key("c", "compare", "c", "compare two marked runs"),
    Key("d", "difference", "d", "to the first step where two runs differ"),
    Key("f", "flow", "f", "every layer's gradient at the cursor, relative to its median"),
    Key("g", "go", "g r", "the list of runs"),
    Key("y", "copy", "y", "copy the command that opens this"),
    Key("s", "save", "s", "save this screen as a text file"),
    Key("t", "theme", "t", "with or without color"),
    Key("question_mark", "help", "?", "these keys"),
    Key("q,ctrl+c,ctrl+q", "quit", "q", "leave"),
)

HINTS: Final = {
    "runs": (("Enter", "open"), ("x", "mark"), ("c", "compare"), ("/", "filter"), ("?", "keys"), ("q", "leave")),
    "run": (
        ("j k", "row"),
        ("< >", "step"),
        ("[ ]", "event"),
        ("+ -", "zoom"),
        ("Enter", "layer"),
        ("w", "why"),
        ("/", "filter"),
        ("?", "keys"),
        ("q", "leave"),
    ),
    "layer": (("< >", "step"), ("j k", "scroll"), ("+ -", "zoom"), ("Esc", "back"), ("?", "keys"), ("q", "leave")),
    "flow": (
        ("< >", "step"),
        ("space", "play"),
        ("j k", "row"),
        ("Enter", "layer"),
        ("Esc", "back"),
        ("?", "keys"),
        ("q", "leave"),
    ),
    "compare": (
        ("j k", "row"),
        ("< >", "step"),
        ("d", "first difference"),
        ("Esc", "back"),
        ("?", "keys"),
        ("q", "leave"),
    ),
    "text": (("j k", "scroll"), ("Esc", "back"), ("q", "leave")),
}


def hint_line(name: str, screen: Screen) -> Line:
    """The keys that matter here, as many as fit; the last two always, they lead to all others and out."""
    parts: list[Line] = []
    for shown, words in HINTS[name]:
        sign = shown if screen.ascii else shown.replace("<", "←").replace(">", "→")
        parts.append([(sign, STRONG), (f" {words}", NOTE), ("   ", "")])
    last = [span for part in parts[-2:] for span in part]
    line: Line = []
    for part in parts[:-2]:
        if line_width([*line, *part, *last]) - 3 > screen.width:
            break
        line += part
    return [*line, *last][:-1]


def help_lines(screen: Screen) -> list[Line]:
    """Every key and what it does."""
    lines: list[Line] = [[("Keys", STRONG)], []]
    width = max(len(key.shown) for key in KEYS) + 2
    lines += [
        [("  ", ""), (pad(key.shown, width), STRONG), (piece, PLAIN)]
        if index == 0
        else [(" " * (width + 2), ""), (piece, PLAIN)]
        for key in KEYS
        for index, piece in enumerate(wrap(key.words, screen.width - width - 2))
    ]
    lines += [[], [("  ", ""), ("A click chooses a row and a step, the wheel moves the rows.", NOTE)]]
    return lines
