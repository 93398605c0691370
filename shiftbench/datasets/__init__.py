"""Data sources: a name such as `imagenet:PATH` becomes an `ImageSet`."""

from shiftbench.datasets.base import Camera, ImageSet

__all__ = ["Camera", "ImageSet"]
