"""A few of the planted faults of the benchmark, one for each cause in each network."""

import pytest

from tests.benchmarks.planted_faults import CAUSES, NETWORKS, Cell, judge, places, strike

WAYS = ("plain", "accumulated", "checkpointed")
CELLS = [
    Cell(network, places(network)[(5 * i + 3 * j) % 12], cause, WAYS[(i + j) % 3])
    for j, network in enumerate(NETWORKS)
    for i, cause in enumerate(CAUSES)
]
COMPILED = Cell("cnn", "blocks.2.filtered", "exp_overflow", "compiled")


@pytest.mark.parametrize("network", NETWORKS)
def test_each_network_has_twelve_places(network: str) -> None:
    assert len(places(network)) == 12


@pytest.mark.parametrize("cell", [*CELLS, COMPILED], ids="-".join)
def test_layer_and_cause_of_a_planted_fault_are_named(cell: Cell) -> None:
    finding = strike(cell)
    assert finding is not None
    assert judge(cell, finding) == (True, True), "\n".join(finding.lines())


def test_the_statistics_a_failing_batch_ruined_are_not_blamed_for_it() -> None:
    cell = Cell("cnn", "blocks.0.filtered", "division_by_zero", "plain")
    finding = strike(cell)
    assert finding is not None
    assert judge(cell, finding) == (True, True)
    assert "blocks.0.norm.running_var" in str(finding.evidence["buffers turned NaN"])
