"""Where pictures can hang beside W&B: what each logger does to show an image.

Two Lightning namespaces have a class each, so a logger is known by its class's name.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from gradwatch.sinks.pictures import Pictures, Wall

Hanger: TypeAlias = Callable[[Any, Pictures, int], None]


def image_walls(loggers: Iterable[object]) -> list[tuple[object, Wall]]:
    """Give the loggers that show images, W&B's left out.

    Args:
        loggers: The Trainer's loggers.

    Returns:
        Each of them, and what to hand pictures and their step.
    """
    walls: list[tuple[object, Wall]] = []
    for logger in loggers:
        names = (base.__name__ for base in type(logger).__mro__)
        hanger = next((HANGERS[name] for name in names if name in HANGERS), None)
        if hanger is not None:
            walls.append((logger, partial(hanger, logger)))
    return walls


def _tensorboard(logger: Any, pictures: Pictures, log_step: int) -> None:  # noqa: ANN401
    import numpy as np

    for key, picture in pictures.items():
        # Height, width, colour.
        pixels_HWC = np.asarray(picture.convert("RGB"))
        logger.experiment.add_image(key, pixels_HWC, log_step, dataformats="HWC")


def _mlflow(logger: Any, pictures: Pictures, log_step: int) -> None:  # noqa: ANN401
    for key, picture in pictures.items():
        # Its file, not a time-stepped image: older versions have no steps, and the last counts.
        name = f"{key}_{log_step:07d}.png"
        logger.experiment.log_image(logger.run_id, picture, artifact_file=name)


HANGERS: dict[str, Hanger] = {"TensorBoardLogger": _tensorboard, "MLFlowLogger": _mlflow}
