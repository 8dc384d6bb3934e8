"""Layers bear the names the user wrote, whoever wrapped them, and each parameter has one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from gradwatch.errors import ConfigurationError
from gradwatch.layers import OUTSIDE, LayerMap, execution_order, match, unwrap


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)
        self.head.weight = self.embed.weight
        self.scale = nn.Parameter(torch.ones(1))


def test_a_tied_parameter_belongs_to_the_first_name() -> None:
    model = Tied()
    layers = LayerMap(model)
    every = dict(model.named_parameters(remove_duplicate=False))
    assert layers.owner(every["head.weight"]) == "embed"
    assert layers.owner(every["head.bias"]) == "head"
    assert layers.name(every["head.weight"]) == "embed.weight"


def test_the_models_own_parameters_belong_to_the_root() -> None:
    model = Tied()
    assert LayerMap(model).owner(model.scale) == "<root>"


def test_a_module_registered_twice_is_one_layer_under_its_first_name() -> None:
    shared = nn.Linear(2, 2)
    layers = LayerMap(nn.ModuleDict({"one": shared, "two": shared}))
    assert layers.names == ("one",)


def test_a_parametrized_layer_keeps_its_name() -> None:
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)))
    layers = LayerMap(model)
    assert layers.names == ("0",)
    assert layers.layers[0].module is model[0]
    assert set(layers.parameter_names.values()) == {
        "0.bias",
        "0.weight.original0",
        "0.weight.original1",
    }


def test_a_compiled_model_is_looked_through() -> None:
    inner = nn.Linear(2, 2)
    compiled: Any = torch.compile(inner, backend="eager")
    assert LayerMap(nn.Sequential(compiled)).names == ("0",)
    assert unwrap(compiled) is inner


def test_a_stranger_is_outside_the_model() -> None:
    assert LayerMap(nn.Linear(2, 2)).owner(nn.Parameter(torch.ones(1))) == OUTSIDE


def test_layers_stand_in_the_order_they_ran() -> None:
    names = ["head", "embed", "blocks.0", "blocks.1"]
    called = ["embed", "blocks.0", "blocks.1", "head"]
    assert execution_order(names, called) == tuple(called)
    assert execution_order(names, []) == tuple(names)


def test_every_layer_stands_in_the_order_once() -> None:
    names = ["a", "b", "c", "d"]
    order = execution_order(names, ["d", "stranger", "b", "d"])
    assert sorted(order) == names
    assert order.index("d") < order.index("b") < order.index("c")


def test_patterns_choose_and_one_that_matches_nothing_is_refused() -> None:
    names = ["encoder.0", "encoder.1", "head"]
    assert match("layers", ("encoder.*", "head"), names) == set(names)
    with pytest.raises(ConfigurationError, match=r"layers: 'encodr.0' matches no layer"):
        match("layers", ("head", "encodr.0"), names)
