"""Faults of data, loss and numbers: what is told is no layer, or the layer with its evidence."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.modules import Apply, Carry

Run = Callable[..., Any]
Note = Callable[[str, str, str], None]
Function = Callable[[Tensor], Tensor]


class Masked(nn.Module):
    """Attend under a padding mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.enc, self.head = nn.Linear(8, width), nn.Linear(width, 1)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        h = self.enc(x)
        h, _ = self.attn(h, h, h, key_padding_mask=pad, need_weights=True)
        return self.head(h)


class Saturated(nn.Module):
    """Half-precision activations that pass the largest number before a softmax."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.enc, self.proj, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.factor = factor
        with torch.no_grad():
            self.proj.weight.mul_(40)

    def forward(self, x: Tensor) -> Tensor:
        h = self.proj(torch.relu(self.enc(x)) * self.factor)
        return self.head(torch.softmax(h, -1))


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.std(0) + 1e-5)


def scaled_by_variance(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.var(0) + 1e-5)


def make_batch(size: int = 5, width: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(size, width), torch.randn(size, 3)


def assert_stopped_before_the_update(outcome: Any, before: dict[str, Tensor]) -> Any:
    assert outcome.error is not None
    assert outcome.error.finding == outcome.only("non_finite")
    after = outcome.model.net.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    return outcome.error.finding


def stop(run: Run, net: nn.Module, batches: list[Any], **options: Any) -> Any:
    before = copy.deepcopy(net.state_dict())
    return assert_stopped_before_the_update(run(net, batches, **options), before)


@pytest.mark.parametrize("where", [0, 2])
def test_the_fault_of_a_later_step_is_told_with_its_step_and_batch(run: Run, where: int) -> None:
    batches = [make_batch() for _ in range(4)]
    batches[where][0][:] = float("inf")
    finding = run(Carry(nn.Tanh()), batches).only("non_finite")
    assert (finding.step, finding.evidence["batch"]) == (where, where)


@pytest.mark.parametrize(("width", "heads", "bad"), [(8, 2, 1), (12, 3, 2)])
def test_a_sequence_that_is_all_padding_is_named_with_its_attention(
    run: Run, note: Note, width: int, heads: int, bad: int
) -> None:
    pad = torch.zeros(3, 5, dtype=torch.bool)
    pad[bad] = True

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return model(*batch)[~batch[1]].square().mean()

    finding = stop(run, Masked(width, heads), [(torch.randn(3, 5, 8), pad)], loss=loss)
    assert finding.layer == "net.attn"
    assert finding.evidence["samples"] == str(bad)
    assert "softmax" in finding.summary
    note("b06", "attn, the masked sample", f"{finding.layer}, sample {bad}: {finding.summary}")


@pytest.mark.parametrize("function", [standardised, scaled_by_variance])
def test_a_last_batch_of_one_sample_is_told_with_its_size(
    run: Run, note: Note, function: Function
) -> None:
    batches = [make_batch(), make_batch(), make_batch(1)]
    # torch itself warns that one sample has no degrees of freedom.
    with pytest.warns(UserWarning, match="degrees of freedom"):
        finding = run(Carry(Apply(function)), batches).only("non_finite")
    assert finding.layer == "net.op"
    assert (finding.evidence["batch"], finding.evidence["batch size"]) == (2, 1)
    note("b08", "op on the last batch, size 1", f"{finding.layer}, batch 2 of size 1")


@pytest.mark.parametrize("target", ["classes", "weights"])
def test_a_loss_without_a_single_label_is_a_fault_of_the_loss(
    run: Run, note: Note, target: str
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def ignored(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1], ignore_index=-100)

    def weighted(model: nn.Module, batch: Any) -> Tensor:
        weight = torch.zeros(len(batch[0]))
        error = (model(batch[0]) - batch[1][:, None]).square().mean(1)
        return (error * weight).sum() / weight.sum()

    loss = ignored if target == "classes" else weighted
    finding = stop(run, net, [(torch.randn(5, 4), torch.full((5,), -100))], loss=loss)
    assert finding.layer == "<loss>"
    note("b09", "<loss> with batch index", finding.summary)


@pytest.mark.parametrize("factor", [9000.0, 16000.0])
def test_a_half_precision_overflow_is_named_before_the_softmax_that_shows_it(
    run: Run, note: Note, factor: float
) -> None:
    batch = (torch.randn(5, 8).half(), torch.randn(5, 3).half())
    finding = stop(run, Saturated(factor).half(), [batch])
    assert finding.layer == "net.proj"
    assert finding.evidence["dtype"] == "float16"
    assert float(finding.evidence["max|input|"]) > 1000
    note("b16", "proj, inf in float16", f"{finding.layer}: {finding.summary}")


@pytest.mark.parametrize(("sample", "value"), [(3, float("nan")), (0, float("inf"))])
def test_bad_data_is_named_by_its_place_in_the_batch(
    run: Run, note: Note, sample: int, value: float
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    bad = make_batch()
    bad[0][sample, 1] = value
    finding = stop(run, net, [bad])
    assert finding.layer == "<input>"
    assert finding.evidence["samples"] == str(sample)
    note("b17", "<input>, tensor and sample", finding.summary)


@pytest.mark.parametrize("function", [torch.sqrt, lambda x: x.log1p().sqrt()])
def test_a_non_finite_number_that_reaches_no_parameter_alarms_nobody(
    run: Run, note: Note, function: Function
) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Apply(function), nn.Linear(4, 3))
    outcome = run(net, [make_batch() for _ in range(4)])
    assert outcome.findings == ()
    assert outcome.error is None
    note("b31", "no alarm", "nothing told")


@pytest.mark.parametrize("position", [0, 2])
def test_of_accumulated_micro_batches_the_bad_one_is_told(
    run: Run, note: Note, position: int
) -> None:
    batches = [make_batch() for _ in range(4)]
    batches[position][0][2, 0] = float("nan")
    finding = stop(run, Carry(nn.Tanh()), batches, accumulate=4)
    assert finding.layer == "<input>"
    assert (finding.step, finding.evidence["batch"]) == (0, position)
    assert finding.evidence["micro-batch"] == f"{position + 1} of 4"
    note("d03", "the bad micro-batch", f"micro-batch {finding.evidence['micro-batch']}")


@pytest.mark.parametrize("policy", ["skip", "warn"])
def test_other_policies_name_the_same_layer_and_go_on(run: Run, policy: str) -> None:
    batches = [make_batch(), make_batch(), make_batch()]
    batches[1][0][0, 0] = float("nan")
    outcome = run(Carry(nn.Tanh()), batches, policy=policy)
    assert outcome.error is None
    assert outcome.findings[0].layer == "<input>"
    finite = all(parameter.isfinite().all() for parameter in outcome.model.parameters())
    assert finite is (policy == "skip")
