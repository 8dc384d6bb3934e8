"""A loss written by hand is swapped in the midst of a training, and is no other than before."""

import copy
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch import FusedBackwardOptions, MemorySink
from gradwatch.callbacks import FusedBackward
from gradwatch.fused import losses
from gradwatch.fused.loss_forms import LossForm
from gradwatch.fused.losses import torch_loss
from gradwatch.fused.providers import Bundled, Site, TorchFused
from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import QUICK, Net, make_batch, run_trial
from tests.kit import Calm, build, fingerprint, fit

CALLS: list[int] = []


class Smoothed(nn.Module):
    """Cross-entropy with smoothed labels, as it is written again and again."""

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        self.smoothing, self.soften = smoothing, nn.LogSoftmax(dim=-1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        log_p = self.soften(x)
        own = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return ((1 - self.smoothing) * own - self.smoothing * log_p.mean(-1)).mean()


class Counted(TorchFused):
    """Torch's own, with a count of its calls."""

    name = "counted"

    def propose(self, site: Site) -> Any:
        if site.pattern != "loss" or site.loss is None:
            return None
        fused = torch_loss(site.loss)

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            CALLS.append(1)
            return fused(self, *args, **kwargs)

        return forward


class Trained(Calm):
    """Keeps such a loss as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = Smoothed()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(self(batch[0]), batch[1])
        self.losses.append(loss.detach().clone())
        return loss


def test_training_goes_on_with_the_swapped_loss_and_follows_the_stock_course_to_the_end() -> None:
    module, stock, sink = build(Trained), build(Trained), MemorySink()
    options = FusedBackwardOptions(
        **{**QUICK, "mode": "force", "after_steps": 2, "providers": [Counted()]}
    )
    CALLS.clear()
    callback = FusedBackward(options, sinks=[sink])
    runs = [fingerprint(fit(each, own), each) for each, own in ((stock, []), (module, [callback]))]
    kept = callback.parts[0].state_dict()["kept"]
    assert kept == [["loss", "cross-entropy by hand", "counted"]]
    (table,) = [each for each in sink.tables if each.name == "trials"]
    told = dict(zip(table.columns, table.rows[0], strict=True))
    assert told["verdict"] == "kept"
    assert told["error"] == pytest.approx(0, abs=1e-6)
    assert len(CALLS) > len(module.losses)
    assert "forward" not in vars(module.loss)
    for own, other in zip(runs[1]["losses"], runs[0]["losses"], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


class Model(nn.Module):
    """A net and its loss."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.net, self.loss = Net(), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.net(x), target)


def tried(model: nn.Module, *providers: Any, **options: Any) -> Result:
    options = {"mode": "force", "loss": lambda each, batch: each(*batch), **options}
    return run_trial(model, providers or [Counted()], make_batch(), **options)


@pytest.fixture
def worn() -> Iterator[Any]:
    """Give a model that wears its loss."""
    torch.manual_seed(0)
    model = Model(Smoothed())
    result = tried(model)
    assert [each.key for each in result.kept] == [("loss", "cross-entropy by hand", "counted")]
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    yield model
    wardrobe.take_off()


def outcome(model: Any) -> tuple[Tensor, Tensor]:
    model.zero_grad()
    loss = model(*make_batch())
    loss.backward()
    return loss.detach(), model.net.head.weight.grad.clone()


def stock_outcome(model: Any) -> tuple[Tensor, Tensor]:
    stock = copy.deepcopy(model)
    vars(stock.loss).pop("forward")
    return outcome(stock)


def test_it_computes_what_the_stock_one_does_in_either_mode(worn: Any) -> None:
    for mode in (True, False):
        worn.train(mode)
        torch.testing.assert_close(outcome(worn), stock_outcome(worn))
    assert CALLS == [1, 1]


def test_another_share_of_smoothing_is_another_loss_and_goes_the_stock_way(worn: Any) -> None:
    worn.loss.smoothing = 0.4
    torch.testing.assert_close(outcome(worn), stock_outcome(worn))
    assert CALLS == []
    worn.loss.smoothing = 0.1
    outcome(worn)
    assert CALLS == [1]


def test_a_child_that_gets_a_hook_or_is_replaced_later_is_called(worn: Any) -> None:
    fired: list[int] = []
    handle = worn.loss.soften.register_forward_hook(lambda *_: fired.append(1))
    outcome(worn)
    handle.remove()
    assert (fired, CALLS) == ([1], [])
    worn.loss.soften = nn.Sequential(nn.LogSoftmax(dim=-1))
    outcome(worn)
    assert CALLS == []


def test_calls_of_another_shape_or_kind_go_the_stock_way(
    worn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, target = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    wide, square = torch.randn(4, 5), torch.randn(3, 3, 3)
    stock = Smoothed()
    monkeypatch.setattr(losses, "_by_torch", None)
    for args, named in (
        ((x,), {"target": target}), ((x, target.int()), {}), ((wide, target), {}),
        ((x[0], target[0]), {}), ((square, torch.ones(3, 3).long()), {}),
    ):  # fmt: skip
        torch.testing.assert_close(worn.loss(*args, **named), stock(*args, **named))
    with pytest.raises(TypeError, match="not callable"):
        worn.loss(x, target)


def test_copies_and_pickles_compute_the_same_loss(worn: Any) -> None:
    expected = stock_outcome(worn)
    torch.testing.assert_close(outcome(copy.deepcopy(worn)), expected)
    assert CALLS == [1]
    loaded = pickle.loads(pickle.dumps(worn))  # noqa: S301 - its own
    torch.testing.assert_close(outcome(loaded), expected)
    buffer = io.BytesIO()
    torch.save(worn.state_dict(), buffer)
    assert CALLS == [1]


def test_a_hook_on_a_child_keeps_the_loss_from_being_swapped() -> None:
    model = Model(Smoothed())
    model.loss.soften.register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    result = tried(model)
    assert [(row.verdict, row.reason) for row in result.rows] == [
        ("refused", "soften carries a hook, which would not fire")
    ]


class Wrapped(nn.Module):
    """Hands everything on to torch's own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(ignore_index=2)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.inner(x, target)


def forward(self: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, ignore_index=2)


class Both:
    """Offers something for the wrapper and for what it wraps."""

    name = "both"

    def propose(self, site: Site) -> Any:
        own = site.pattern == "loss" or type(site.module) is nn.CrossEntropyLoss
        return forward if own else None


def test_what_a_swapped_loss_wraps_is_not_tried_again() -> None:
    result = tried(Model(Wrapped()), Both())
    assert [(row.kind, row.verdict, row.reason) for row in result.rows] == [
        ("cross-entropy by hand", "kept", "forced"),
        ("CrossEntropyLoss", "not tried", "it is part of a chain that was kept"),
    ]


def test_a_provider_of_five_lines_is_told_the_form() -> None:
    forms: list[LossForm | None] = []

    class Mine:
        name = "mine"

        def propose(self, site: Site) -> Any:
            forms.append(site.loss)

    tried(Model(Smoothed(0.25)), Mine())
    assert [each for each in forms if each is not None] == [
        LossForm(None, smoothing=0.25, rank=2, classes=3)
    ]


def test_one_that_is_wrong_is_rejected() -> None:
    class Wrong:
        name = "wrong"

        def propose(self, site: Site) -> Any:
            return forward if site.pattern == "loss" else None

    (row,) = tried(Model(Smoothed()), Wrong()).rows
    assert row.verdict == "rejected"
    assert "off, the stock one" in row.reason


def test_torch_offers_its_own_function_and_the_kernel_says_where_it_runs() -> None:
    rows = tried(Model(Smoothed()), TorchFused(), Bundled()).rows
    told = {
        row.provider: (row.verdict, row.reason)
        for row in rows if row.kind == "cross-entropy by hand"
    }  # fmt: skip
    assert told["torch"] == ("kept", "forced")
    assert told["gradwatch"][0] == "refused"
    assert told["gradwatch"][1].startswith("kernels run on CUDA devices")


class OfPixels(nn.Module):
    """A class for each pixel, and one that is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.void = 2

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        counts = target != self.void
        log_p = x.log_softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)
        return -(log_p * counts).sum() / counts.sum().clamp(min=1)


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.loss = nn.Conv2d(1, 3, 1), OfPixels()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(x), target)


def test_a_dense_loss_is_swapped_for_torchs_own() -> None:
    model, batch = Dense(), (torch.randn(2, 1, 3, 3), torch.arange(18).view(2, 3, 3) % 3)
    result = run_trial(
        model, [TorchFused()], batch, mode="force", loss=lambda each, given: each(*given)
    )
    assert [each.key for each in result.kept] == [("loss", "cross-entropy by hand", "torch")]
    wardrobe = Wardrobe()
    for target in (batch[1], torch.full_like(batch[1], 2)):
        wardrobe.take_off()
        stock = model(batch[0], target)
        wardrobe.wear(result.kept)
        torch.testing.assert_close(model(batch[0], target), stock)
    wardrobe.take_off()
