"""The tour of the ancestor's manual runs, and says what is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "seed_tour.py"

# Worked out by hand: linspace has nothing to alert; mean of [1, 2, 3, 4] is 2.5; of -1, 0, 1, 2 and 4 it is 1.2 and
# the norm is sqrt(22); 1e-9 is under the seeds' vanishing bound of 1e-7; 600 ms is over the profiler's 500.
LINES = {
    "basic usage": "{'num_inspected': 1, 'num_alerts': 0, 'alerts': []} Healthy",
    "configuration": "200 1000",
    "hooks": "1 Success (2, 2) 2.5",
    "hooks, another layer": "[]",
    "plots": "['weights_distribution', 'layer1_gradient_flow'] dashboard.html True",
    "gradients": "Critical ['1 of 1 layer vanishing, first transformer_block_0']",
    "profiler": "True ModelComputation High transformer_block_0",
    "training, by hand": "4 Healthy 60 Converging Stable",
    "training, by itself": "4 Healthy 60 Converging Stable",
    "training, findings": "[]",
}


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("tour")
    done = subprocess.run(
        [sys.executable, str(TOUR), str(folder)], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def said(output: str, topic: str) -> list[str]:
    return [line.partition(": ")[2] for line in output.splitlines() if line.startswith(f"{topic}: ")]


@pytest.mark.parametrize("topic", LINES)
def test_a_part_says_what_is_true(tour: tuple[str, Path], topic: str) -> None:
    assert said(tour[0], topic) == [LINES[topic]]


def test_a_tensor_with_a_nan_is_measured_without_it_and_it_is_located(tour: tuple[str, Path]) -> None:
    numbers, alert = said(tour[0], "tensor")
    mean, num_nan, norm = numbers.split()
    assert (float(mean), int(num_nan)) == (pytest.approx(1.2), 1)
    assert float(norm) == pytest.approx(22**0.5)
    assert alert == "Critical: layer_weights holds 1 NaN of 6 elements, the first at [1, 1]"


def test_a_falling_loss_converges(tour: tuple[str, Path]) -> None:
    assert said(tour[0], "diagnostics") == ["Converging Stable", "1.0 24"]


def test_the_terminal_shows_seven_values_in_ten_bins_and_a_falling_line(tour: tuple[str, Path]) -> None:
    lines = tour[0].splitlines()
    begin = next(i for i, line in enumerate(lines) if line.endswith("7 values"))
    bins = lines[begin + 1 : begin + 11]
    assert [int(line.split()[-1]) for line in bins] == [1, 0, 1, 0, 1, 1, 1, 1, 0, 1]
    plot = lines[lines.index("Training Loss") + 1 :]
    drawn = [line.index("•") for line in plot if "•" in line]
    assert drawn == sorted(drawn)
    assert max(map(len, lines)) <= 128


def test_files_are_where_they_were_asked_for(tour: tuple[str, Path]) -> None:
    folder = tour[1]
    page = (folder / "plots" / "dashboard.html").read_text()
    assert page.count("<figure") == 2
    assert len(list((folder / "runs").glob("*/run.json"))) == 1
    assert not (folder / "debug_output").exists()


def test_nine_of_the_ten_parts_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; import seed_tour as tour; from pathlib import Path\n"
        "tour.basic_usage(); tour.advanced_configuration(Path('.')); tour.debugging_hooks()\n"
        "tour.visualization(Path('.')); tour.tensor_inspector(); tour.gradient_debugger()\n"
        "tour.model_diagnostics(); tour.performance_profiler(); tour.terminal_visualization()\n"
        "assert 'torch' not in sys.modules\n"
    )
    path = os.pathsep.join([str(TOUR.parent), str(TOUR.parents[1] / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
