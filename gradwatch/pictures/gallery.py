"""All pictures of a run that have something to show."""

from collections.abc import Callable

from gradwatch.history import History
from gradwatch.pictures.heatmap import heatmap
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.theme import LIGHT, Theme

Draw = Callable[..., Picture]

DRAWN: tuple[tuple[Callable[[History], bool], Draw], ...] = (
    (lambda history: history.layers().layers != (), heatmap),
)


def gallery(history: History, *, theme: Theme = LIGHT) -> list[Picture]:
    """Draw every picture of a run there are numbers for.

    Args:
        history: The run so far.
        theme: Colours.

    Returns:
        The pictures, the most telling first; none of an empty history.
    """
    return [draw(history, theme=theme) for has_numbers, draw in DRAWN if has_numbers(history)]
