"""Which series a logger gets: finite values, no dots, and few of them whatever the model."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from gradwatch.readings import FlowReading
from gradwatch.sinks.keys import LIMIT, init, layer_scalars, update

MakeFlow = Callable[..., FlowReading]
BIG = 1500


def measure_all_families(make_flow: MakeFlow, layers: int) -> FlowReading:
    norms = np.full(layers, 0.1)
    return make_flow(norms, update_ratio=norms, act_grad=norms)


def test_a_small_model_has_every_family_of_every_layer(make_flow: MakeFlow) -> None:
    scalars = layer_scalars(measure_all_families(make_flow, 3))
    families = ("grad_norm", "weight_norm", "update_ratio", "act_grad")
    assert set(scalars) == {f"{family}/net/{i}" for family in families for i in range(3)}


def test_no_key_holds_a_dot(make_flow: MakeFlow) -> None:
    flow = make_flow([1.0], layers=("model.encoder.0.attn",))
    assert set(layer_scalars(flow)) == {
        "grad_norm/model/encoder/0/attn",
        "weight_norm/model/encoder/0/attn",
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_left_out(make_flow: MakeFlow, bad: float) -> None:
    scalars = layer_scalars(make_flow([bad, 0.5]))
    assert "grad_norm/net/0" not in scalars
    assert scalars["grad_norm/net/1"] == 0.5


def test_values_are_plain_floats(make_flow: MakeFlow) -> None:
    assert {type(value) for value in layer_scalars(make_flow([1.0])).values()} == {float}


def test_a_model_of_fifteen_hundred_layers_stays_under_ten_kilobytes_a_row(
    make_flow: MakeFlow,
) -> None:
    row = layer_scalars(measure_all_families(make_flow, BIG))
    assert len(row) == 80
    assert len(json.dumps(row)) < 10_000


def test_a_big_model_is_told_by_depth(make_flow: MakeFlow) -> None:
    norms = np.repeat(np.arange(1.0, 17.0), 10)
    scalars = layer_scalars(make_flow(norms))
    depths = [scalars[f"grad_norm_depth/{depth:02d}"] for depth in range(16)]
    assert depths == list(np.arange(1.0, 17.0))


def test_every_layer_is_written_on_request(make_flow: MakeFlow) -> None:
    scalars = layer_scalars(make_flow(np.ones(BIG)), limit=None)
    assert sum(key.startswith("grad_norm/") for key in scalars) == BIG


def test_the_layer_that_leaves_its_own_past_gets_a_series(make_flow: MakeFlow) -> None:
    rng = np.random.default_rng(0)
    watchlist = init(make_flow(np.ones(BIG)).layers)
    for step in range(12):
        norms = 10 ** rng.normal(-1, 0.05, BIG)
        norms[700] *= 1 if step < 8 else 1e-3
        watchlist = update(watchlist, make_flow(norms))
    assert 700 in watchlist.kept
    scalars = layer_scalars(make_flow(norms), LIMIT, watchlist)
    assert scalars["grad_norm/net/700"] == norms[700]


def test_a_layer_far_below_all_others_gets_a_series_from_the_first_step(
    make_flow: MakeFlow,
) -> None:
    norms = np.ones(BIG)
    norms[3] = 1e-9
    assert "grad_norm/net/3" in layer_scalars(make_flow(norms))


def test_series_of_a_healthy_model_do_not_come_and_go(make_flow: MakeFlow) -> None:
    rng = np.random.default_rng(0)
    watchlist = init(make_flow(np.ones(100)).layers)
    ever: set[int] = set()
    for _ in range(200):
        watchlist = update(watchlist, make_flow(10 ** rng.normal(-1, 0.1, 100)))
        ever |= set(watchlist.kept)
    assert len(watchlist.kept) == 16
    assert len(ever) <= 32


def test_other_layers_start_a_new_list(make_flow: MakeFlow) -> None:
    watchlist = update(init(("old",)), make_flow([1.0, 1.0]))
    assert watchlist.layers == ("net.0", "net.1")


def test_a_layer_without_any_gradient_has_no_median(make_flow: MakeFlow) -> None:
    watchlist = update(init(()), make_flow([np.nan, 1.0]))
    assert np.isnan(watchlist.median[0])
    assert watchlist.median[1] == pytest.approx(1.0)
