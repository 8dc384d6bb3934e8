"""All pictures of a run that have something to show."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from gradwatch.history import History
from gradwatch.pictures.graph import graph_chain
from gradwatch.pictures.heatmap import heatmap
from gradwatch.pictures.memory import memory, memory_kinds
from gradwatch.pictures.picture import Picture
from gradwatch.pictures.profile import profile
from gradwatch.pictures.rates import KEYS as RATE_KEYS
from gradwatch.pictures.rates import learning_rate
from gradwatch.pictures.ratios import update_ratio
from gradwatch.pictures.roofline import roofline
from gradwatch.pictures.scaler import has_counts, loss_scale
from gradwatch.pictures.series import find
from gradwatch.pictures.theme import LIGHT, Theme
from gradwatch.pictures.totals import KEYS as TOTAL_KEYS
from gradwatch.pictures.totals import total_norm
from gradwatch.pictures.trials import can_draw, trials
from gradwatch.tables import Table

Draw = Callable[..., Picture]
Has = Callable[[History], bool]


def _has(*keys: str) -> Has:
    return lambda history: any(find(history, key, LIGHT) for key in keys)


def _has_layers(family: str) -> Has:
    return lambda history: bool(history.layers(family).layers)


DRAWN: tuple[tuple[Has, Draw], ...] = (
    (_has_layers("grad_norm"), heatmap),
    (_has_layers("grad_norm"), profile),
    (_has_layers("update_ratio"), update_ratio),
    (_has(*TOTAL_KEYS), total_norm),
    (_has(*RATE_KEYS), learning_rate),
    (has_counts, loss_scale),
)


def gallery(
    history: History,
    *,
    tables: Mapping[str, Table] = MappingProxyType({}),
    theme: Theme = LIGHT,
) -> list[Picture]:
    """Draw every picture of a run there are numbers for.

    Args:
        history: The run so far.
        tables: Tables by their name; ``"graph"`` is drawn as a chain, ``"roofline"`` with
            ``"ceilings"`` as a chart, ``"trials"`` as intervals; others are left alone.
        theme: Colours.

    Returns:
        The pictures, the most telling first; none of an empty history without tables.
    """
    drawn = [draw(history, theme=theme) for has_numbers, draw in DRAWN if has_numbers(history)]
    memories = [memory(history, kind=kind, theme=theme) for kind in memory_kinds(history)]
    return [*drawn, *memories, *_of_tables(tables, theme)]


def _of_tables(tables: Mapping[str, Table], theme: Theme) -> Iterator[Picture]:
    if "graph" in tables and tables["graph"].rows:
        yield graph_chain(tables["graph"], theme=theme)
    if "ceilings" in tables and "roofline" in tables and tables["roofline"].rows:
        yield roofline(tables["roofline"], tables["ceilings"], theme=theme)
    if "trials" in tables and can_draw(tables["trials"]):
        yield trials(tables["trials"], theme=theme)
