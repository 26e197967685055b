"""A small stand-in for torchvision, of which there is no build for every machine: data from scikit-learn's digits."""

import sys

import nothing

from torchvision import datasets, models, transforms, utils

__version__ = "0.0+standin"
__all__ = ["datasets", "models", "transforms", "utils"]

# What downloads is not asked for, only imported.
sys.modules["torchvision.datasets.utils"] = nothing.module("torchvision.datasets.utils")
