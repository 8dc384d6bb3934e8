"""The way a bad value took from where it was born to the first bad parameter, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from gradwatch.non_finite.blame import Fault
from gradwatch.non_finite.evidence import bare
from gradwatch.non_finite.memory import Use
from gradwatch.non_finite.trace import Operation
from gradwatch.non_finite.walk import Record

LONGEST = 5


def chain_of(fault: Fault, record: Record, gradients: Mapping[int, str]) -> str:
    """Follow the bad value from where it was born to the first bad parameter.

    Args:
        fault: What is to blame.
        record: What the replay recorded.
        gradients: Name of the parameter by the memory of its gradient.

    Returns:
        At most five stations, the last one the parameter; empty where it met none.
    """
    *way, reached = _way(fault, record, gradients) or [""]
    stations = [_station(each) for each in way if isinstance(each, Operation)]
    # Of a stay in one place the first operation is told.
    told = [next(stay) for _, stay in groupby(stations, key=lambda station: station[0])]
    words = [f"{place} ({name})" for place, name in told]
    if len(words) > LONGEST - 1:
        words = [*words[: LONGEST - 3], "…", words[-1]]
    return " → ".join([*words, str(reached)]) if reached else ""


def _way(fault: Fault, record: Record, gradients: Mapping[int, str]) -> list[Operation | str]:
    start = fault.operation
    came_from: dict[int, int] = {start.index: -1}
    carried = [*start.writes, *(start.reads if fault.leaf else ())]
    tainted = dict.fromkeys((use.storage for use in carried), start.index)
    for index, operation in record.trace.operations.items():
        # What was bad before is another matter: it may not even have been used.
        if index < start.index:
            continue
        if index > start.index:
            sources = (use.storage for use in _bad(operation.reads, record))
            source = next((tainted[each] for each in sources if each in tainted), None)
            if source is None:
                continue
            came_from[index] = source
        written = [use.storage for use in _bad(operation.writes, record)]
        tainted |= dict.fromkeys(written, index)
        reached = [gradients[each] for each in written if each in gradients and operation.node]
        if reached and index in came_from:
            return [*_back(index, came_from, record), reached[0]]
    return []


def _bad(uses: Iterable[Use], record: Record) -> Iterator[Use]:
    return (use for use in uses if record.value(use))


def _back(index: int, came_from: Mapping[int, int], record: Record) -> list[Operation]:
    path: list[Operation] = []
    while index >= 0:
        path.append(record.trace.operations[index])
        index = came_from[index]
    return path[::-1]


def _station(operation: Operation) -> tuple[str, str]:
    place = operation.call.name if operation.call.module is not None else "outside the model"
    if operation.node:
        return f"backward of {place}", operation.node.partition("Backward")[0]
    return place, bare(operation.name)
