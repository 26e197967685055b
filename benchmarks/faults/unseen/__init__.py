"""A second set: the same bugs on other models, data, optimizers, layers and steps. No rule may be tuned on these."""

from importlib import import_module

THEMES = (
    "stepping",
    "rates",
    "losses",
    "nonfinite",
    "networks",
    "inputs",
    "labels",
    "precision",
    "ranks",
    "healthy",
    "further",
    "further_healthy",
    "strangers",
    "suspicious",
    "settled",
    "healthy_unusual",
)


def load() -> None:
    """Import every theme, which registers its programs."""
    for theme in THEMES:
        import_module(f"{__name__}.{theme}")
