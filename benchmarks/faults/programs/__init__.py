"""The programs, one theme a file."""

from importlib import import_module

THEMES = (
    "stepping",
    "ownership",
    "rates",
    "loss",
    "nonfinite",
    "initialisation",
    "normalisation",
    "attention",
    "experts",
    "inputs",
    "labels",
    "precision",
    "ranks",
    "graph",
    "generalisation",
    "healthy_schedules",
    "healthy_models",
    "healthy_losses",
    "healthy_networks",
    "healthy_precision",
    "healthy_unusual",
    "healthy_strangers",
)


def load() -> None:
    """Import every theme, which registers its programs."""
    for theme in THEMES:
        import_module(f"{__name__}.{theme}")
