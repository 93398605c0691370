"""Figures that need images: an image under shifts, and a gallery of failures."""
