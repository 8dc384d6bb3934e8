"""The look at the graph over real fits: what is told, what is shown, and that nothing stays."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gradwatch import MemorySink
from gradwatch.errors import ConfigurationError
from gradwatch.graph import GraphOptions, GraphWatch
from tests.graph.conftest import Plain, Told, callback
from tests.kit import Net, build, differences, fingerprint, fit, make_half

Tell = Callable[..., Told]


def sigmoids(count: int, between: Callable[[], nn.Module] = nn.Identity) -> nn.Sequential:
    layers = [part for _ in range(count) for part in (nn.Linear(16, 16), between(), nn.Sigmoid())]
    return nn.Sequential(nn.Linear(36, 16), *layers, nn.Linear(16, 3))


def test_a_long_run_of_sigmoids_is_told_at_its_far_end_with_the_chain(tell: Tell) -> None:
    (finding,) = tell(Plain(sigmoids(14))).findings
    assert (finding.rule, finding.layer, finding.severity) == (
        "saturating_chain",
        "net.0",
        "warning",
    )
    assert finding.evidence["functions"] == "sigmoid 14"
    assert finding.evidence["product_of_largest_derivatives"] == pytest.approx(0.25**14)
    assert finding.evidence["chain"] == (
        "<loss> → net.42 (sigmoid) → net.39 (sigmoid) → … 11 more … → net.3 (sigmoid) → "
        "net.0.weight"
    )


@pytest.mark.parametrize(
    "net",
    [sigmoids(5), sigmoids(14, lambda: nn.LayerNorm(16)), sigmoids(14, lambda: nn.BatchNorm1d(16))],
    ids=["short", "layer norm between", "batch norm between"],
)
def test_a_short_or_normalised_run_says_nothing(tell: Tell, net: nn.Module) -> None:
    assert tell(Plain(net)).findings == []


def test_a_deep_residual_net_of_sigmoids_says_nothing(tell: Tell) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(36, 36)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(x).sigmoid()

    net = nn.Sequential(*[Residual() for _ in range(14)], nn.Linear(36, 3))
    assert tell(Plain(net)).findings == []


def test_the_healthy_net_says_nothing_and_shows_its_longest_way(tell: Tell) -> None:
    told = tell(build(Net))
    assert told.findings == []
    (table,) = told.tables
    assert (table.name, table.step) == ("graph", 0)
    assert table.columns == ("depth", "layer", "operation", "mark", "run", "in_a_row")
    assert [row[4:] for row in table.rows] == [(None, None)] * len(table.rows)
    assert tuple(row[:4] for row in table.rows) == (
        (0, "<loss>", "div, nll_loss, log_softmax", ""),
        (3, "head", "addmm", ""),
        (4, "drop", "mul", ""),
        (5, "norm", "native_layer_norm", ""),
        (6, "hidden", "addmm", ""),
        (8, "act", "relu", ""),
        (9, "bn", "native_batch_norm", ""),
        (10, "conv", "convolution", ""),
    )


class Carries(Plain):
    """Adds each step's hidden values to those of all steps before."""

    def __init__(self, *, detached: bool, retained: bool, deep: bool = False) -> None:
        super().__init__(nn.Linear(36, 3))
        self.deep = nn.Linear(3, 3) if deep else nn.Identity()
        self.state: Tensor | None = None
        self.detached, self.retained = detached, retained

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        hidden = self.deep(self.net(batch[0].flatten(1)).exp())
        if self.state is not None:
            hidden = hidden + 0.5 * (self.state.detach() if self.detached else self.state)
        self.state = hidden
        return F.cross_entropy(hidden, batch[1])

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(retain_graph=self.retained)


def test_a_state_that_is_never_detached_is_told_once_the_graph_grows(tell: Tell) -> None:
    (finding,) = tell(Carries(detached=False, retained=True)).findings
    assert (finding.rule, finding.layer, finding.step) == ("graph_grows", "<loss>", 2)
    first, second, third = str(finding.evidence["nodes_of_earlier_steps"]).split(", ")
    assert int(first) == 0 < int(second) < int(third)
    assert "detach() the state" in finding.remedy


def test_a_detached_state_says_nothing(tell: Tell) -> None:
    assert tell(Carries(detached=True, retained=False)).findings == []


@pytest.mark.parametrize(("retained", "what"), [(False, "let go"), (True, "written over")])
def test_a_carried_state_is_told_before_the_backward_raises_on_it(
    tell: Tell, retained: bool, what: str
) -> None:
    module = Carries(detached=False, retained=retained, deep=True)
    (finding,) = tell(module, raises=RuntimeError).findings
    assert (finding.rule, finding.step) == ("graph_carried_over", 1)
    assert what in finding.summary
    assert "without being detached" in finding.cause


def test_an_edit_in_place_is_told_before_the_backward_raises_on_it(tell: Tell) -> None:
    class Edits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate = nn.Linear(36, 3), nn.Sigmoid()

        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate(self.first(x))
            gate += 1
            return gate

    (finding,) = tell(Plain(Edits()), raises=RuntimeError).findings
    assert (finding.rule, finding.layer, finding.severity) == ("in_place_edit", "net.gate", "error")
    assert finding.evidence["kept_as"] == "result"
    assert finding.evidence["shape"] == "(4, 3)"
    assert "sigmoid" in finding.summary


def test_what_no_step_comes_to_tell_is_told_at_the_end(tell: Tell) -> None:
    class Fails(Plain):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            raise KeyError("an error of the user's own")

        def on_after_backward(self) -> None:
            raise KeyError("an error of the user's own")

    assert tell(Fails(sigmoids(14)), raises=KeyError).rules == ["saturating_chain"]


def test_two_backwards_through_one_graph_are_told(tell: Tell) -> None:
    class Twice(Plain):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            hidden = self.net(batch[0].flatten(1))
            self.manual_backward(hidden.sum())
            self.manual_backward(hidden.square().sum())

    module = Twice(nn.Sequential(nn.Linear(36, 3), nn.Tanh()))
    module.automatic_optimization = False
    (finding,) = tell(module, raises=RuntimeError).findings
    assert (finding.rule, finding.layer) == ("graph_used_twice", "net.1")


class Cuts(Plain):
    def __init__(self, where: str) -> None:
        super().__init__(nn.Linear(36, 8))
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.where = where

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        hidden = self.middle(self.net(batch[0].flatten(1)))
        hidden = hidden.detach() if self.where == "between" else hidden
        if self.where == "no_grad":
            with torch.no_grad():
                hidden = self.middle(self.net(batch[0].flatten(1)))
        return F.cross_entropy(self.head(hidden), batch[1])


@pytest.mark.parametrize("where", ["between", "no_grad"])
def test_a_cut_between_modules_is_told_with_the_last_module_before_it(
    tell: Tell, where: str
) -> None:
    told = tell(Cuts(where))
    (finding,) = told.findings
    assert (finding.rule, finding.layer) == ("graph_cut", "middle")
    assert finding.evidence["chain"] == "<loss> → head → cut in middle → middle → net"
    assert tuple(row[:4] for row in told.tables[0].rows[-2:]) == (
        (4, "middle", "the graph is cut", "cut"),
        (4, "middle … net", "2 layer(s) not reached", ""),
    )


def test_a_cut_inside_a_module_is_told_with_the_module(tell: Tell) -> None:
    class Detaches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.detach().tanh()

    net = nn.Sequential(nn.Linear(36, 8), Detaches(), nn.Linear(8, 3))
    (finding,) = tell(Plain(net)).findings
    assert (finding.rule, finding.layer) == ("graph_cut", "net.1")


def test_whole_layers_are_left_to_the_gradient_flow_and_parts_are_told_all_the_same(
    tell: Tell,
) -> None:
    class Partly(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, self.bias.detach())

    assert tell(Cuts("between"), beside_flow=True).findings == []
    (finding,) = tell(Plain(Partly(36, 3)), beside_flow=True).findings
    assert (finding.rule, finding.layer, finding.severity) == ("graph_cut", "net", "info")
    assert finding.evidence["parameters"] == "net.bias"


def test_reentrant_checkpoints_and_frozen_layers_are_no_cuts(tell: Tell) -> None:
    class Checkpoints(Plain):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x = batch[0].flatten(1).requires_grad_()
            hidden = checkpoint(body, x, use_reentrant=True)
            return F.cross_entropy(head(hidden), batch[1])

    first, head = nn.Linear(36, 8), nn.Linear(8, 3)
    body = nn.Sequential(first, nn.Tanh())
    net = nn.Sequential(body, head)
    assert tell(Checkpoints(net)).findings == []
    first.requires_grad_(False)
    assert tell(Plain(net)).findings == []


class Adversarial(pl.LightningModule):
    """Two optimizers; the first loss does not reach the generator, on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.maker, self.judge = nn.Linear(36, 36), nn.Linear(36, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        second, first = optimizers
        made = self.maker(batch[0].flatten(1))
        first.zero_grad()
        self.manual_backward(self.judge(made.detach()).mean())
        first.step()
        second.zero_grad()
        self.manual_backward(-self.judge(made).mean())
        second.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.maker.parameters(), lr=0.1),
            torch.optim.SGD(self.judge.parameters(), lr=0.1),
        ]


def test_an_adversarial_pair_says_nothing(tell: Tell) -> None:
    assert tell(Adversarial(), max_steps=6).findings == []


def test_a_graph_beyond_the_bound_is_told_and_shown_as_far_as_it_goes(tell: Tell) -> None:
    told = tell(Plain(sigmoids(14)), GraphOptions(most_nodes=20))
    assert told.rules == ["graph_not_walked"]
    assert told.tables[0].title.endswith("as far as it was walked")


@pytest.mark.parametrize(
    "trainer",
    [{"accumulate_grad_batches": 2}, {"plugins": [make_half()]}, {"gradient_clip_val": 0.1}],
    ids=["accumulated", "half", "clipped"],
)
def test_training_is_the_same_to_the_bit(trainer: dict[str, Any]) -> None:
    plain, watched = build(Net), build(Net)
    without = fit(plain, max_steps=6, **trainer)
    sink = MemorySink()
    beside = fit(watched, [callback(sink, GraphWatch())], max_steps=6, **trainer)
    assert differences(fingerprint(without, plain), fingerprint(beside, watched)) == []
    assert [table.name for table in sink.tables] == ["graph"]


def test_no_hook_and_no_module_is_held_after_the_look() -> None:
    watch = GraphWatch()
    module = build(Net)
    fit(module, [callback(MemorySink(), watch)], max_steps=4)
    hooks = [
        each for part in module.modules() for each in (part._forward_hooks, part._forward_pre_hooks)
    ]
    assert not any(hooks)
    assert not any(isinstance(own, nn.Module) for own in vars(watch).values())
    assert (watch._stage, watch._places, watch._layers) == (None, None, None)


def test_a_second_fit_looks_again_and_says_nothing_twice() -> None:
    sink = MemorySink()
    watch = callback(sink, GraphWatch())
    for _ in range(2):
        fit(Plain(sigmoids(14)), [watch], max_steps=2)
    assert [finding.rule for finding in sink.findings] == ["saturating_chain"]
    assert [table.name for table in sink.tables] == ["graph", "graph"]


def test_a_resumed_part_says_nothing_twice(tell: Tell) -> None:
    sink, first = MemorySink(), GraphWatch()
    fit(Plain(sigmoids(14)), [callback(sink, first)], max_steps=2)
    second = GraphWatch()
    second.load_state_dict(first.state_dict())
    fit(Plain(sigmoids(14)), [callback(sink, second)], max_steps=2)
    assert [finding.rule for finding in sink.findings] == ["saturating_chain"]


def test_a_part_copies_and_pickles_without_its_model() -> None:
    watch = GraphWatch(GraphOptions(saturating=4), beside_flow=False)
    fit(build(Net), [callback(MemorySink(), watch)], max_steps=1)
    for twin in (copy.deepcopy(watch), pickle.loads(pickle.dumps(watch))):  # noqa: S301
        assert (twin.options, twin._beside_flow, twin._stage) == (watch.options, False, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"most_nodes": 50_000}, "most_nodes must be 20,000 or less: PyTorch frees"),
        ({"rows": 3}, "rows must be 10 or more"),
        ({"saturating": 0}, "saturating must be a positive"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        GraphOptions(**wrong)
