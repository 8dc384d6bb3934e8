"""Layer names → groups that are worth a label: the modules they stand in.

Shapes: L layers in execution order.
"""

from itertools import groupby, takewhile
from typing import NamedTuple

MOST_GROUPS = 24


class Group(NamedTuple):
    """Neighbouring layers that share the beginning of their names.

    Attributes:
        first: Index of the first layer.
        stop: Index after the last one.
        label: What they share; ``a.b–d`` stands for the children b to d of a.
    """

    first: int
    stop: int
    label: str


def outline(layers: tuple[str, ...], most: int = MOST_GROUPS) -> list[Group]:
    """Group layers by the modules they stand in, deep enough and not deeper.

    A module is taken apart while it holds more than two parts in ``most`` of all layers; its
    small children are joined until they hold half a part.

    Args:
        layers: (L,) layer names in execution order.
        most: About how many groups.

    Returns:
        The groups, in order; together they hold every layer once.

    Examples:
        >>> names = ("embed", *(f"blocks.{i}.{part}" for i in range(3) for part in "qkv"), "head")
        >>> [group.label for group in outline(names, most=6)]
        ['embed', 'blocks.0', 'blocks.1', 'blocks.2', 'head']
    """
    paths = [tuple(layer.split(".")) for layer in layers]
    return _split(paths, 0, len(paths), 0, len(paths) / most) if paths else []


def _split(
    paths: list[tuple[str, ...]], first: int, stop: int, depth: int, part: float
) -> list[Group]:
    groups: list[Group] = []
    small: list[tuple[int, int]] = []
    for start, end in [*_children(paths, first, stop, depth), (stop, stop)]:
        joined = small[-1][1] - small[0][0] if small else 0
        is_big = end == start or end - start >= part / 2
        if small and (is_big or joined >= part / 2):
            groups.append(_join(paths, small, depth))
            small = []
        if not is_big:
            small.append((start, end))
        elif end - start > max(2 * part, 1) and any(
            len(path) > depth + 1 for path in paths[start:end]
        ):
            groups += _split(paths, start, end, depth + 1, part)
        elif end > start:
            groups.append(Group(start, end, ".".join(_shared(paths[start:end]))))
    return groups


def _children(
    paths: list[tuple[str, ...]], first: int, stop: int, depth: int
) -> list[tuple[int, int]]:
    runs = groupby(range(first, stop), key=lambda index: paths[index][depth : depth + 1])
    members = [list(run) for _, run in runs]
    return [(run[0], run[-1] + 1) for run in members]


def _join(paths: list[tuple[str, ...]], runs: list[tuple[int, int]], depth: int) -> Group:
    first, stop = runs[0][0], runs[-1][1]
    if len(runs) == 1:
        return Group(first, stop, ".".join(_shared(paths[first:stop])))
    ends = [".".join(paths[start][depth : depth + 1]) for start, _ in (runs[0], runs[-1])]
    return Group(first, stop, ".".join([*paths[first][:depth], "–".join(ends)]))


def _shared(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    # What the first and the last of a sorted list share, all share.
    ends = min(paths), max(paths)
    parts = zip(*ends, strict=False)
    return tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], parts))
