"""The autograd graph in short: a chain from the loss down, with what blocks the gradient marked."""

from itertools import groupby
from typing import NamedTuple

from gradwatch.pictures.canvas import Canvas, Layer, Point, Rect
from gradwatch.pictures.columns import choose
from gradwatch.pictures.lettering import cut, shorten, text_width
from gradwatch.pictures.markers import draw_marker
from gradwatch.pictures.picture import WIDTH, Entry, Picture, begin, box_of, legend
from gradwatch.pictures.theme import LIGHT, Colour, Theme
from gradwatch.tables import Cell, Table

CAPTION = (
    "From the loss at the top to the first layer at the bottom; the number is how many operations"
    " lie between. Saturating runs shrink the gradient, nothing flows past a cut."
)
ROW = 22
TOP = 74
MOST_ROWS = 60
LAYER_PIXELS = 330
MARKS = ("cut", "in-place", "saturating")
KINDS = {"": "circle", "saturating": "square", "cut": "cross", "in-place": "diamond"}
UNKNOWN = "triangle"
DEPTH = "depth"
NEEDED, RUNS = (DEPTH, "layer", "operation", "mark"), ("run", "in_a_row")


class Link(NamedTuple):
    """A row of the chain.

    Attributes:
        depth: Operations between it and the loss; empty where unknown.
        layer: Where it is.
        operation: What is done there.
        mark: ``""``, ``"saturating"``, ``"cut"`` or ``"in-place"``.
        run: Which saturating run it belongs to; empty if to none.
        in_a_row: How many functions that run has.
    """

    depth: str
    layer: str
    operation: str
    mark: str
    run: str = ""
    in_a_row: str = ""


def graph_chain(table: Table, *, theme: Theme = LIGHT) -> Picture:
    """Draw a table of the autograd graph as a chain.

    Args:
        table: Columns ``depth``, ``layer``, ``operation`` and ``mark``, the loss first; with
            ``run`` and ``in_a_row`` saturating runs are drawn as bars. Of more than 60 rows the
            unmarked ones are put together.
        theme: Colours.

    Raises:
        ConfigurationError: If a column is missing.
    """
    told = NEEDED + tuple(name for name in RUNS if name in table.columns)
    links = _fit([_link(row) for row in choose(table, told)])
    canvas = begin("Autograd graph", TOP + ROW * max(len(links), 1) + 16, theme)
    canvas.text((14, 46), cut(table.title, WIDTH - 28), colour=theme.muted)
    depth = 26 + max(text_width(link.depth) for link in [Link(DEPTH, "", "", ""), *links])
    widths = [min(text_width(link.layer), LAYER_PIXELS) for link in links]
    chain = Rect(depth, TOP, WIDTH - 14, TOP + ROW * max(len(links), 1))
    words = depth + 58 + max(widths, default=0)
    found = [mark for mark in MARKS if any(link.mark == mark for link in links)]
    entries = [Entry(mark, _colour(mark, theme), KINDS[mark]) for mark in found]
    legend(canvas, WIDTH - 14, 28, entries)
    if links:
        canvas.text((depth - 8, TOP - 4), DEPTH, 12, colour=theme.muted, anchor="rs")
    _draw_line(canvas, chain, links)
    heads = {first for first, _ in _runs(links)}
    for index, link in enumerate(links):
        shown = link._replace(operation=_said(link, heads_run=index in heads))
        _draw_link(canvas, shown, (depth + 20, TOP + ROW * (index + 0.5)), words)
    return Picture(
        "graph/chain", "Autograd graph", CAPTION, canvas.image, box_of(canvas, chain)
    )  # fmt: skip


def _link(row: tuple[Cell, ...]) -> Link:
    return Link(*("" if cell is None else str(cell) for cell in row))


def _fit(links: list[Link]) -> list[Link]:
    """Put unmarked neighbours together until the chain fits."""
    size = 1
    shorter = links
    while len(shorter) > MOST_ROWS and size < len(links):
        size *= 2
        shorter = [
            link
            for mark, run in groupby(links, key=lambda link: link.mark)
            for link in _chunks(list(run), size, marked=bool(mark))
        ]
    return shorter


def _chunks(run: list[Link], size: int, *, marked: bool) -> list[Link]:
    if marked:
        return run
    parts = [run[start : start + size] for start in range(0, len(run), size)]
    return [
        part[0]
        if len(part) == 1
        else part[0]._replace(operation=f"{len(part)} rows: {part[0].operation} …")
        for part in parts
    ]


def _said(link: Link, *, heads_run: bool) -> str:
    """Say what is done, the mark, and at the first of several how many saturate in a row."""
    if not link.mark:
        return link.operation
    more = f": the first of {link.in_a_row} in a row" if heads_run and link.in_a_row else ""
    return f"{link.operation}  ({link.mark}{more})"


def _draw_line(canvas: Canvas, chain: Rect, links: list[Link]) -> None:
    """Draw the way of the gradient: it ends at a cut, and is thick where functions saturate."""
    theme, x = canvas.theme, chain.left + 20
    layer, flowing = Layer(chain), True
    for index, link in enumerate(links[:-1]):
        y = TOP + ROW * (index + 0.5)
        flowing = flowing and link.mark != "cut"
        if flowing:
            layer.line([(x, y), (x, y + ROW)], 2)
        else:
            for start in (4, 10, 16):
                canvas.stroke([(x, y + start), (x, y + start + 2)], theme.grid, 2)
    canvas.put(layer, theme.muted)
    for first, last in _runs(links):
        top, bottom = (round(TOP + ROW * (index + 0.5)) for index in (first, last))
        canvas.fill(Rect(x - 3, top, x + 4, bottom), _colour("saturating", theme))


def _runs(links: list[Link]) -> list[tuple[int, int]]:
    """Give first and last row of each saturating run."""
    rows: dict[str, list[int]] = {}
    for index, link in enumerate(links):
        if link.run:
            rows.setdefault(link.run, []).append(index)
    return [(own[0], own[-1]) for own in rows.values()]


def _draw_link(canvas: Canvas, link: Link, at: Point, words: int) -> None:
    theme, (x, y) = canvas.theme, at
    colour = _colour(link.mark, theme)
    layer = Layer(Rect(round(x) - 10, round(y) - 10, round(x) + 11, round(y) + 11))
    draw_marker(layer, at, KINDS.get(link.mark, UNKNOWN), 6.0 if link.mark else 4.0)
    canvas.put(layer, colour)
    canvas.text((x - 28, y), link.depth, colour=theme.muted, anchor="rm")
    text = theme.text if not link.mark else colour
    canvas.text((x + 18, y), shorten(link.layer, LAYER_PIXELS), colour=text, anchor="lm")
    canvas.text((words, y), cut(link.operation, WIDTH - 24 - words), colour=text, anchor="lm")


def _colour(mark: str, theme: Theme) -> Colour:
    colours = {"": theme.lines[0], "saturating": theme.lines[1], "in-place": theme.lines[3]}
    return colours.get(mark, theme.non_finite)
