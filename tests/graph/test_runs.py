"""Which rows of the table are one saturating run is handed over as numbers, not read off words."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradwatch.graph import spine
from gradwatch.pictures import LIGHT, graph_chain
from gradwatch.tables import Table
from tests.graph.conftest import look
from tests.pictures.kit import count_in_box


class Residual(nn.Module):
    """Lead round what is inside."""

    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inside(x)
        return out


def sigmoids(count: int) -> list[nn.Module]:
    return [part for _ in range(count) for part in (nn.Linear(8, 8), nn.Sigmoid())]


def normalised() -> list[nn.Module]:
    # A layer's name says nothing of what it does.
    return [*sigmoids(4), nn.LayerNorm(8), *sigmoids(5)]


def table_of(parts: list[nn.Module]) -> Table:
    net = nn.Sequential(*parts)
    seen = look(net, lambda: net(torch.ones(2, 8)).sum())
    return spine(seen, None, rows=60, step=0)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: sigmoids(6), [6]),
        (lambda: sigmoids(2), []),
        (normalised, [5, 4]),
        (lambda: [*sigmoids(4), Residual(nn.Sequential(*sigmoids(5)))], [5, 4]),
    ],
    ids=["one", "too short", "a norm between", "a way round"],
)
def test_the_table_numbers_the_runs_of_the_graph(
    make: Callable[[], list[nn.Module]], expected: list[int]
) -> None:
    table = table_of(make())
    runs = dict.fromkeys(row[4:] for row in table.rows if row[4] is not None)
    assert sorted(str(length) for _, length in runs) == sorted(map(str, expected))
    for number, length in runs:
        assert sum(row[4] == number for row in table.rows) == length


def test_the_picture_draws_the_runs_it_is_told_of() -> None:
    table = table_of(normalised())
    numbers = [str(row[4] or "") for row in table.rows]
    assert len(set(numbers)) == 3
    rows = tuple(row[:4] for row in table.rows)
    untold = replace(table, columns=table.columns[:4], rows=rows)
    told, plain = (count_in_box(graph_chain(own), LIGHT.lines[1]) for own in (table, untold))
    assert told > plain
