"""The pictures of the report: drawn once for each theme, embedded, readable under the pointer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gradwatch.history import History
from gradwatch.pictures import DARK, LIGHT, Picture, Theme, gallery
from gradwatch.pictures.theme import Colour, blend, viridis
from gradwatch.report.hover_of import hover_of
from gradwatch.report.listing import show_numbers
from gradwatch.report.markup import Html, tag
from gradwatch.report.png import as_png, as_uri
from gradwatch.report.story import Story

# Chosen by their area, the colours of thin lines would be merged; a scale keeps its own order.
SCALE_COLOURS, SHADES = 96, 9


class Figure(NamedTuple):
    """A picture in both themes, with what it says under the pointer.

    Attributes:
        light: On white.
        dark: On the dark page's ground.
        hover: Numbers for the pointer; empty where the picture has none.
    """

    light: Picture
    dark: Picture
    hover: Mapping[str, Any]


def draw(story: Story) -> list[Figure]:
    """Draw every picture there are numbers for.

    Args:
        story: The run.
    """
    pairs = zip(_drawn(story, LIGHT), _drawn(story, DARK), strict=True)
    return [Figure(light, dark, hover_of(story.history, light)) for light, dark in pairs]


def show_figures(figures: Sequence[Figure], history: History) -> Html:
    """Give the section of the pictures.

    Args:
        figures: What was drawn.
        history: Where the extremes of all scalars come from.
    """
    none = tag("p", "There is nothing to draw yet.", class_="quiet") if not figures else Html()
    shown = [_figure(figure) for figure in figures]
    heading = tag("h2", "Pictures")
    return tag("section", heading, none, *shown, show_numbers(history), id="pictures")


def hover_data(figures: Sequence[Figure]) -> dict[str, Any]:
    """Give what `report.js` reads, by the name of the picture.

    Args:
        figures: What was drawn.
    """
    return {figure.light.name: figure.hover for figure in figures if figure.hover}


def _drawn(story: Story, theme: Theme) -> list[Picture]:
    try:
        return gallery(story.history, tables=story.tables, theme=theme)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        # Somebody else's table of the same name: it is still listed, and costs no other picture.
        return _of_history(story, theme)


def _of_history(story: Story, theme: Theme) -> list[Picture]:
    try:
        return gallery(story.history, theme=theme)
    except ArithmeticError:
        # Numbers at the end of a float's range have no axis; tables and findings stand without.
        return []


def _figure(figure: Figure) -> Html:
    picture = figure.light
    images = [_image(figure.light, LIGHT), _image(figure.dark, DARK)]
    live: dict[str, str | bool] = {}
    if figure.hover:
        label = f"{picture.title}. Arrow keys read its numbers."
        live = {"data_picture": picture.name, "tabindex": "0", "role": "group", "aria_label": label}
    frame = tag("div", *images, class_="frame", **live)
    # The picture bears its title itself; the heading is for those who hear the page.
    heading = tag("h3", picture.title, class_="unseen")
    caption = tag("figcaption", picture.caption, class_="quiet")
    return tag("figure", heading, tag("div", frame, class_="scroll"), caption)


def _image(picture: Picture, theme: Theme) -> Html:
    width, height = picture.image.size
    marks = (theme.ground, theme.absent, theme.zero, theme.non_finite)
    colours = _colours(theme, scale=bool(picture.rows))
    return tag(
        "img",
        src=as_uri(as_png(picture.image, colours, marks)),
        alt=f"{picture.title}. {picture.caption}",
        width=str(width),
        height=str(height),
        class_=theme.name,
    )


def _colours(theme: Theme, *, scale: bool) -> list[Colour]:
    """Give what a picture is drawn in, each colour in shades down to the ground."""
    ramp = [(red, green, blue) for red, green, blue in viridis(np.linspace(0, 1, SCALE_COLOURS))]
    others = ramp if scale else []
    drawn = (theme.text, theme.muted) if scale else (theme.text, theme.muted, *theme.lines)
    shares = np.linspace(0, 1, SHADES)
    return [*others, *(blend(each, theme.ground, share) for each in drawn for share in shares)]
