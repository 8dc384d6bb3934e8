"""Callbacks for PyTorch Lightning: thin translators of the Trainer's events."""

__all__: list[str] = []
