"""Whether the training loss is a measure of progress at all.

The loss of a policy gradient is a sum of log-probabilities times advantages or returns: it has the right gradient, and as a
number it means nothing. It grows while the agent gets better, and stands still or goes below zero without any reason. What
rules read off a loss (that it diverges, does not fall, stands still) is not said of such a one.
"""

from __future__ import annotations

from stethoscope.analyse.span import Span
from stethoscope.record.events import Coefficients, LossGraph


class SurrogateLoss:
    """Counts the samples of the loss's graph that show a policy gradient."""

    def __init__(self) -> None:
        self._num_graphs = 0
        self._num_surrogates = 0

    def observe(self, span: Span) -> None:
        """Every recorded graph of the loss."""
        for _, graph in span.events_of(LossGraph):
            self._num_graphs += 1
            self._num_surrogates += int(is_surrogate(graph.coefficients))

    @property
    def is_measure(self) -> bool:
        """Whether it falls where the model gets better; so it is, until most recorded graphs say otherwise."""
        return 2 * self._num_surrogates <= self._num_graphs


def is_surrogate(coefficients: Coefficients | None) -> bool:
    """Whether log-probabilities are multiplied by numbers that differ, and are no mask."""
    return coefficients is not None and coefficients.mask_share < 1 and coefficients.low < coefficients.high
