"""Are the inputs of a size that a first layer can work with?

Looked at where data meets the first weights: a model that normalises its input first takes any size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch

from stethoscope.checkup.examination import Examination
from stethoscope.checkup.findings import WARNING, found, listed
from stethoscope.checkup.ignoring import constant_inputs
from stethoscope.checkup.observation import Layer
from stethoscope.record import Finding

MAX_RMS: Final = 25.0
"""Standardised inputs have 1, pixels from 0 to 16 about 8, pixels from 0 to 255 about 100."""
MAX_COLUMN_RMS: Final = 50.0
MIN_RMS: Final = 0.02
MIN_ABS: Final = 0.05
MIN_ROW_NORM: Final = 0.3
"""Rows of length one (tf-idf, unit embeddings) have small numbers and are not small."""
WEIGHTED: Final = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.RNNBase, torch.nn.RNNCellBase)


def examine(exam: Examination) -> Iterator[Finding]:
    """unscaled_inputs, inputs_too_small."""
    if constant_inputs(exam) is not None:
        return
    for layer in _first_layers(exam):
        if not math.isfinite(layer.max_abs_in):
            continue
        exam.saw(f"what goes into {layer.path}: rms {layer.rms_in:.3g}, largest {layer.max_abs_in:.3g}")
        columns = layer.column_rms
        worst = float(columns.max()) if columns is not None else layer.rms_in
        if layer.rms_in > MAX_RMS or worst > MAX_COLUMN_RMS:
            yield _too_large(layer, columns, worst)
            return
        row_norm = layer.rms_in * math.sqrt(torch.Size(layer.in_shape[1:]).numel()) if len(layer.in_shape) == 2 else 0.0
        if 0 < layer.rms_in < MIN_RMS and layer.max_abs_in < MIN_ABS and row_norm < MIN_ROW_NORM:
            yield found(
                "inputs_too_small",
                WARNING,
                f"The inputs of {layer.path} have a size of {layer.rms_in:.2g}, far below 1: scaled twice?",
                sites=["(input)", layer.path],
                numbers={"rms of the inputs": layer.rms_in, "largest": layer.max_abs_in},
                remedy="x = (x - x.mean()) / x.std()  # once",
                confidence=0.9,
            )
            return


def _too_large(layer: Layer, columns: torch.Tensor | None, worst: float) -> Finding:
    names: list[str] = []
    if columns is not None:
        order = columns.argsort(descending=True).tolist()
        names = [f"input[:, {column}]" for column in order if float(columns[column]) > MAX_COLUMN_RMS][:8]
    which = f" ({listed(names)})" if names else ""
    low = float(columns.min()) if columns is not None else layer.rms_in
    return found(
        "unscaled_inputs",
        WARNING,
        f"Inputs of size {worst:.3g}{which} go into {layer.path} as they are: they drown the others and make steps too large.",
        sites=[layer.path, *names],
        numbers={
            "largest rms of a feature": worst,
            "smallest rms of a feature": low,
            "largest input": layer.max_abs_in,
        },
        remedy="x = (x - train_x.mean(0)) / train_x.std(0)",
        confidence=0.9,
    )


def _first_layers(exam: Examination) -> list[Layer]:
    """Layers with weights that read the batch itself."""
    targets = [e["target"] for e in exam.graph.get("edges", []) if e["source"] == "(input)"]
    types = {n["path"]: n["type"] for n in exam.graph.get("nodes", [])}
    for path in list(targets):
        # What only reshapes hands the batch on.
        if types.get(path) in ("Flatten", "Unflatten", "Identity"):
            targets += [e["target"] for e in exam.graph["edges"] if e["source"] == path]
    layers = [exam.first.observer.layers.get(path) for path in targets]
    return [layer for layer in layers if layer is not None and isinstance(layer.module, WEIGHTED)]
