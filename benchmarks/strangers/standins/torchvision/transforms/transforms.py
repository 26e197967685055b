"""The name under which some scripts import the same classes."""

from torchvision.transforms import *  # noqa: F403
