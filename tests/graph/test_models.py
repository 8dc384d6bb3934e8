"""The look at the graph on models as people have them: large, wrapped, recurrent, pretrained."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from gradwatch import MemorySink
from gradwatch.graph import GraphOptions, GraphWatch, judge_saturation, spine
from gradwatch.plain_host import PlainHost
from gradwatch.session import Session
from gradwatch.session_options import SessionOptions
from tests.graph.conftest import Plain, Told, look

Tell = Callable[..., Told]


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=4, n_head=2)
    tokens = torch.randint(0, 64, (2, 16))
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
    )
    inputs = {"input_ids": torch.randint(0, 64, (2, 16)), "labels": torch.tensor([0, 1])}
    return BertForSequenceClassification(config), inputs


def resnet() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 32, 32], depths=[2, 2, 2, 2])
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return ResNetForImageClassification(config), inputs


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("make", [gpt2, bert, resnet])
def test_a_healthy_transformer_or_resnet_has_no_long_run(
    make: Callable[[], tuple[nn.Module, dict[str, Tensor]]],
) -> None:
    model, inputs = make()
    seen = look(model, lambda: model(**inputs).loss)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert set(seen.reached) == trained
    assert judge_saturation(seen, 4, 0) is None
    rows = spine(seen, None, rows=60, step=0).rows
    layers = {row[1] for row in rows}
    assert {row[3] for row in rows} == {""}
    first = "embedder" if make is resnet else "embeddings" if make is bert else "wte"
    assert any(first in str(layer) for layer in layers)


@pytest.mark.parametrize(("layers", "most"), [(12, 60), (400, 60), (2000, 60), (12, 10)])
def test_the_table_is_short_however_deep_the_model(layers: int, most: int) -> None:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(layers)])
    seen = look(net, lambda: net(torch.ones(1, 3)).sum())
    rows = spine(seen, None, rows=most, step=0).rows
    assert len(rows) <= most
    assert rows[0][1] == "<loss>"
    assert str(rows[-1][1]).endswith("0") or str(rows[-1][1]).endswith("0.0")
    assert sum("saturating" in row for row in rows) > len(rows) // 3


def test_neighbours_of_one_parent_are_put_together_first() -> None:
    net = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(20)])
    seen = look(net, lambda: net(torch.ones(1, 3)).sum())
    rows = spine(seen, None, rows=30, step=0).rows
    assert [row[1:4] for row in rows[1:3]] == [
        ("19", "relu, addmm", ""),
        ("18", "relu, addmm", ""),
    ]


def test_an_unrolled_recurrence_has_a_short_way_to_its_weights() -> None:
    cell = nn.RNNCell(4, 4)

    def unrolled() -> Tensor:
        state = torch.zeros(2, 4)
        for _ in range(50):
            state = cell(torch.ones(2, 4), state)
        return state.sum()

    seen = look(cell, unrolled)
    assert max(node.saturating for node in seen.nodes) == 50
    assert judge_saturation(seen, 8, 0) is None


def test_lazy_modules_are_named_once_they_have_parameters(tell: Tell) -> None:
    net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(3))

    class Lazy(Plain):
        def configure_optimizers(self) -> Any:
            self.net(torch.ones(1, 36))
            return super().configure_optimizers()

    told = tell(Lazy(net))
    assert told.findings == []
    assert [row[1] for row in told.tables[0].rows] == ["<loss>", "net.2", "net.1", "net.0"]


@pytest.fixture
def one_process(tmp_path: Any) -> Iterator[None]:
    there = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=there, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_data_parallel_model_is_walked_by_its_own_names() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    wrapped = DistributedDataParallel(net)
    seen = look(net, lambda: wrapped(torch.ones(2, 4)).sum())
    assert set(seen.reached) == {"0.weight", "0.bias"}
    assert [node.layer for node in seen.nodes if node.operation == "tanh"] == ["1"]


def test_a_plain_loop_is_looked_at_from_the_outputs_of_its_model() -> None:
    net = nn.Sequential(*[part for _ in range(9) for part in (nn.Linear(4, 4), nn.Sigmoid())])
    optimizer, sink = torch.optim.SGD(net.parameters(), lr=0.1), MemorySink()
    host = PlainHost(net, [optimizer], None, 1)
    session = Session(net, [GraphWatch(GraphOptions())], [sink], host, SessionOptions())
    for _ in range(3):
        batch = torch.randn(2, 4)
        session.begin_micro_batch(((batch,), {}), 0, joins=True)
        out = net(batch)
        session.end_forward(None, [out])
        session.begin_backward()
        out.sum().backward()
        session.end_backward()
        session.before_step(optimizer)
        optimizer.step()
        session.after_step(optimizer)
        session.end_batch()
        optimizer.zero_grad()
    session.finish()
    assert [(told.rule, told.layer) for told in sink.findings] == [("saturating_chain", "0")]
    assert [table.name for table in sink.tables] == ["graph"]
    assert sink.tables[0].rows[0] == (0, "17", "sigmoid", "saturating", 1, 9)
