"""Cross-entropies, as modules written by hand and as functions, through the bundled kernel."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.loss_forms import NEGATIVE, REDUCTIONS, LossForm, loss_reference
from gradwatch.fused.losses import fused_cross_entropy
from gradwatch.fused.providers import Bundled
from gradwatch.fused.wardrobe import Wardrobe
from tests.fused.lab import make_batch, run_trial

CLASSES = 5
FORMS = [
    LossForm(ignore_index, reduction, smoothing, negative=negative)
    for ignore_index, smoothing in ((-100, 0.0), (1, 0.1), (None, 0.3))
    for reduction in (*REDUCTIONS, "none")
    for negative in NEGATIVE
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_kernel_computes_every_form(form: LossForm) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3, 4, CLASSES, generator=generator).requires_grad_()
    target = torch.randint(0, CLASSES, (3, 4), generator=generator)
    if form.negative != "no class":
        target[0, :2] = -2
    if form.ignore_index is not None:
        target[1, 1:] = form.ignore_index
    exact = x.detach().double().requires_grad_()
    loss, reference = fused_cross_entropy(form)(x, target), loss_reference(form, exact, target)
    torch.testing.assert_close(loss, reference.float())
    direction = torch.linspace(0.5, 1.5, loss.numel()).view_as(loss)
    loss.backward(direction)
    reference.backward(direction.double())
    assert x.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(x.grad, exact.grad.float())


@pytest.mark.parametrize(
    ("reduction", "expected"), [("mean", float("nan")), ("mean, 0 of none", 0.0)]
)
def test_all_rows_left_out_give_what_the_form_says(reduction: str, expected: float) -> None:
    x = torch.randn(2, CLASSES, requires_grad=True)
    loss = fused_cross_entropy(LossForm(0, reduction))(x, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(loss, torch.tensor(expected), equal_nan=True)
    loss.backward()
    assert torch.equal(x.grad, torch.zeros(2, CLASSES))  # type: ignore[arg-type]


class ByHand(nn.Module):
    """Smoothed, with rows left out."""

    def __init__(self) -> None:
        super().__init__()
        self.smoothing, self.pad = 0.1, 0

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        log_p, counts = x.log_softmax(-1), target != self.pad
        own = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        loss = (1 - self.smoothing) * own - self.smoothing * log_p.mean(-1)
        return (loss * counts).sum() / counts.sum()


class Model(nn.Module):
    """A layer and its loss; without one it calls a function."""

    def __init__(self, loss: nn.Module | None) -> None:
        super().__init__()
        self.head, self.loss = nn.Linear(16, CLASSES), loss

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        logits = self.head(x)
        if self.loss is None:
            return F.cross_entropy(logits, target, ignore_index=1, label_smoothing=0.2)
        return self.loss(logits, target)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (ByHand(), ("loss", "cross-entropy by hand")),
        (None, ("<root>", "cross-entropy")),
    ],
    ids=["by hand", "function"],
)
def test_a_loss_is_proved_and_trains_through_the_kernel(
    loss: nn.Module | None, expected: tuple[str, str]
) -> None:
    model, batch = Model(loss), make_batch()
    result = run_trial(
        model, [Bundled()], batch, mode="force", loss=lambda each, given: each(*given)
    )
    assert [(each.layer, each.kind) for each in result.kept] == [expected]
    stock = model(*batch)
    wardrobe = Wardrobe()
    wardrobe.wear(result.kept)
    worn = model(*batch)
    assert "CrossEntropy" in type(worn.grad_fn).__name__
    torch.testing.assert_close(worn, stock)
    wardrobe.take_off()


class Pixels(nn.Module):
    """A class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Conv2d(1, CLASSES, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x), target)


def test_classes_that_come_second_are_refused_with_the_reason() -> None:
    batch = torch.randn(2, 1, 3, 3), torch.arange(18).view(2, 3, 3) % CLASSES
    result = run_trial(
        Pixels(), [Bundled()], batch, mode="force", loss=lambda each, given: each(*given)
    )
    (row,) = result.rows
    assert (row.verdict, row.kind) == ("refused", "cross-entropy")
    assert row.reason.startswith("its classes come second")
