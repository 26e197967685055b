"""Plain data need no more than pickle."""

from pickle import *  # noqa: F403


def extend(use_dill: bool = True) -> None:
    """torch asks for this."""
