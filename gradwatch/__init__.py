"""Gradient health for PyTorch: find the layer at fault before the weights take it in."""

__all__: list[str] = []
