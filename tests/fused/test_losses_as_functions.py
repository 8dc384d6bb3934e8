"""A cross-entropy that a forward calls as a function is a chain of that forward."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.loss_forms import LossForm
from gradwatch.fused.losses import fused_cross_entropy
from gradwatch.fused.providers import Bundled, Site
from gradwatch.fused.trial import Result
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import make_batch, run_trial
from tests.fused.words import WORDS, Way, Words

IDS = torch.randint(0, WORDS, (2, 6), generator=torch.Generator().manual_seed(2))
CALLS: list[LossForm] = []


class Losses:
    """Takes cross-entropies over in plain torch, and counts the calls."""

    name = "losses"

    def propose(self, site: Site) -> Any:
        form = site.loss
        if site.pattern != "cross-entropy" or form is None:
            return None

        def loss(x: Tensor, target: Tensor) -> Tensor:
            CALLS.append(form)
            # Without a device for the kernel it is torch's own function.
            return fused_cross_entropy(form)(x, target)

        return loss


def flat(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=self.pad
    )


def in_two(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    log_p = F.log_softmax(logits.flatten(0, 1), dim=-1)
    return F.nll_loss(log_p, targets.flatten(), reduction="sum")


def by_method(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(logits.transpose(1, 2).log_softmax(1), targets)


def of_rows(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    loss = F.cross_entropy(logits.transpose(1, 2), targets, label_smoothing=0.1, reduction="none")
    return loss.sum(1).mean()


def made_on_the_spot(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return nn.CrossEntropyLoss(ignore_index=3)(logits.view(-1, WORDS), targets.view(-1))


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch)[1]


def tried(way: Way, provider: Any = None, **options: Any) -> tuple[Any, Result]:
    torch.manual_seed(0)
    model = Words(way)
    CALLS.clear()
    options = {"mode": "force", "loss": loss_of, **options}
    return model, run_trial(model, [provider or Losses()], (IDS, IDS.flip(1)), **options)


@pytest.mark.parametrize(
    ("way", "form"),
    [
        (flat, LossForm(-1, rank=2)),
        (in_two, LossForm(reduction="sum", rank=2)),
        (by_method, LossForm(dim=1, rank=3)),
        (of_rows, LossForm(dim=1, smoothing=0.1, reduction="none", rank=3)),
        (made_on_the_spot, LossForm(3, rank=2)),
    ],
)
def test_a_loss_called_as_a_function_is_found_and_agrees(way: Way, form: LossForm) -> None:
    _, result = tried(way)
    assert [(each.layer, each.kind) for each in result.kept] == [("<root>", "cross-entropy")]
    assert set(CALLS) == {form}


def test_the_bundled_kernel_is_asked_for_it() -> None:
    _, result = tried(flat, Bundled())
    (row,) = [row for row in result.rows if row.kind == "cross-entropy"]
    assert row.verdict == "refused"
    assert row.reason.startswith("kernels run on CUDA devices")


def weighted(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, WORDS), targets.view(-1), torch.ones(WORDS))


def of_shares(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, WORDS), F.one_hot(targets.view(-1), WORDS).float())


def over_the_words(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(logits.flatten(0, 1), dim=0), targets.flatten())


def read_twice(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    log_p = F.log_softmax(logits.flatten(0, 1), dim=-1)
    return F.nll_loss(log_p, targets.flatten()) + log_p.square().mean()


@pytest.mark.parametrize("way", [weighted, of_shares, over_the_words, read_twice])
def test_another_loss_is_not_taken_for_one(way: Way) -> None:
    _, result = tried(way)
    assert result.kept == ()
    assert CALLS == []


@pytest.fixture
def worn() -> Iterator[Any]:
    """Give a model that wears its loss."""
    model, result = tried(flat)
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    yield model
    wardrobe.take_off()


def test_a_model_that_wears_one_computes_what_it_did(worn: Any) -> None:
    logits, loss = worn(IDS, IDS.flip(1))
    assert len(CALLS) == 1
    stock = type(worn).forward(worn, IDS, IDS.flip(1))
    torch.testing.assert_close((logits, loss), stock)
    left_out = IDS.clone()
    left_out[0] = -1
    torch.testing.assert_close(worn(IDS, left_out), type(worn).forward(worn, IDS, left_out))


def test_a_model_that_wears_one_still_says_which_arguments_it_takes(worn: Any) -> None:
    assert list(inspect.signature(worn.forward).parameters) == ["ids", "targets"]


def test_without_targets_and_with_another_mark_it_goes_the_stock_way(worn: Any) -> None:
    assert worn(IDS)[1] is None
    worn.pad = 3
    marked = worn(IDS, IDS.flip(1))[1]
    assert CALLS == []
    torch.testing.assert_close(marked, flat(worn, worn(IDS)[0], IDS.flip(1)))


def test_another_length_is_no_reason_to_go_the_stock_way_and_one_that_is_too_long_still_fails(
    worn: Any,
) -> None:
    short = IDS[:, :4].contiguous()
    torch.testing.assert_close(worn(short, short), type(worn).forward(worn, short, short))
    assert len(CALLS) == 1
    long = IDS.repeat(1, 2)
    with pytest.raises(AssertionError, match="what the forward asserts does not hold"):
        worn(long, long)


class Decides(Words):
    """Goes another way with few words."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits, loss = super().forward(ids, targets)
        return logits, loss * 2 if ids.size(1) < 3 else loss


def test_a_forward_that_decides_by_a_length_is_not_rewritten() -> None:
    assert run_trial(Decides(flat), [Losses()], (IDS, IDS), mode="force", loss=loss_of).kept == ()


def on_a_slice(self: Any, logits: Tensor, targets: Tensor) -> Tensor:
    shifted = targets.new_full(targets.shape, -100)
    shifted[..., :-1] = targets[..., 1:].clone()
    return F.cross_entropy(logits.flatten(0, 1), shifted.flatten())


def test_targets_that_the_forward_shifts_by_hand_are_written_down() -> None:
    _, result = tried(on_a_slice)
    assert [each.kind for each in result.kept] == ["cross-entropy"]


class Cooled(nn.Module):
    """A loss of its own, around torch's: only the function in it can be taken over."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 0.5

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        loss = F.cross_entropy(x / self.temperature, target, reduction="none")
        return ((1 - (-loss).exp()) ** 2 * loss).mean()


class WithALoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(16, 3), Cooled()

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.head(x), target)


def test_one_inside_a_loss_that_is_another_is_found_there() -> None:
    model = WithALoss()
    result = run_trial(
        model, [Losses()], make_batch(), mode="force", loss=lambda each, batch: each(*batch)
    )
    assert [(each.layer, each.kind) for each in result.kept] == [("loss", "cross-entropy")]
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    CALLS.clear()
    worn = model(*make_batch())
    assert len(CALLS) == 1
    wardrobe.take_off()
    torch.testing.assert_close(worn, model(*make_batch()))
