"""Softmax cross-entropies are known by what they compute; what only looks like one is not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused.loss_behaviour import loss_form, recognise_loss
from gradwatch.fused.loss_forms import LossForm

CLASSES = 7
FLAT = torch.zeros(4, CLASSES), torch.zeros(4, dtype=torch.long)
TEXTS = torch.zeros(2, 3, CLASSES), torch.zeros(2, 3, dtype=torch.long)
DENSE = torch.zeros(2, CLASSES, 3, 3), torch.zeros(2, 3, 3, dtype=torch.long)
Live = tuple[Tensor, Tensor]


class Loss(nn.Module):
    """A loss in Python: a function of itself, logits and targets."""

    def __init__(self, compute: Callable[[Any, Tensor, Tensor], Tensor], **own: Any) -> None:
        super().__init__()
        self.compute = compute
        for name, value in own.items():
            setattr(self, name, value)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.compute(self, x, target)


def picked(log_p: Tensor, target: Tensor) -> Tensor:
    return log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def gathered(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return -picked(F.log_softmax(x, -1), target).mean()


def by_log_sum_exp(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return (x.logsumexp(-1) - picked(x, target)).sum()


def by_one_hot(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return -(F.one_hot(target, CLASSES) * x.log_softmax(-1)).sum(-1).mean()


def by_place(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return -x.log_softmax(-1)[torch.arange(len(x)), target].mean()


def by_steps(self: Any, x: Tensor, target: Tensor) -> Tensor:
    x = x.float() - x.float().amax(-1, keepdim=True)
    return x.exp().sum(-1).log() - picked(x, target)


def by_nll(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(F.log_softmax(x, 1), target, ignore_index=self.void)


def by_children(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return self.nll(self.log_softmax(x), target)


def of_texts(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x.view(-1, x.size(-1)), target.view(-1), ignore_index=self.pad)


def smoothed(self: Any, x: Tensor, target: Tensor) -> Tensor:
    log_p = x.log_softmax(-1)
    return (self.confidence * -picked(log_p, target) - self.smoothing * log_p.mean(-1)).mean()


def smoothed_over_the_others(self: Any, x: Tensor, target: Tensor) -> Tensor:
    share = torch.full_like(x, self.smoothing / (x.size(1) - 1))
    share.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
    return torch.sum(-share * x.log_softmax(1), 1).mean()


def padded(self: Any, x: Tensor, target: Tensor) -> Tensor:
    counts = target != self.pad
    loss = -picked(x.log_softmax(-1), target.clamp(min=0)) * counts
    return loss.sum() / counts.sum().clamp(min=1)


def over_all_rows(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, ignore_index=0, reduction="none").mean()


class Unlike(nn.CrossEntropyLoss):
    """Torch's own, with a forward of its own."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 - the stock name
        return super().forward(input.float(), target)


def form(**own: Any) -> LossForm:
    return LossForm(**{"ignore_index": None, "classes": CLASSES, **own})


CHILDREN = {"log_softmax": nn.LogSoftmax(-1), "nll": nn.NLLLoss(ignore_index=3, reduction="sum")}


@pytest.mark.parametrize(
    ("module", "live", "expected"),
    [
        (Loss(gathered), FLAT, form()),
        (Loss(gathered), TEXTS, form()),
        (Loss(by_log_sum_exp), FLAT, form(reduction="sum")),
        (Loss(by_one_hot), FLAT, form()),
        (Loss(by_place), FLAT, form(negative="counted from the end")),
        (Loss(by_steps), FLAT, form(reduction="none", promotes=True)),
        (Loss(by_nll, void=255), DENSE, form(dim=1, ignore_index=255)),
        (Loss(by_children, **CHILDREN), FLAT, form(ignore_index=3, reduction="sum")),
        (Loss(of_texts, pad=-100), TEXTS, form(ignore_index=-100)),
        (Loss(of_texts, pad=-1), TEXTS, form(ignore_index=-1)),
        (Loss(smoothed, smoothing=0.1, confidence=0.9), FLAT, form(smoothing=0.1)),
        (Loss(smoothed_over_the_others, smoothing=0.1), FLAT, form(smoothing=0.1 * 7 / 6)),
        (
            Loss(padded, pad=0), TEXTS,
            form(ignore_index=0, reduction="mean, 0 of none", negative="the first class"),
        ),
        (Loss(over_all_rows), FLAT, form(ignore_index=0, reduction="mean of all rows")),
        (Unlike(label_smoothing=0.2), FLAT,
         form(ignore_index=-100, smoothing=0.2, promotes=True)),
    ],
    ids=lambda value: value.compute.__name__ if isinstance(value, Loss) else "",
)  # fmt: skip
def test_a_cross_entropy_written_by_hand_is_recognised(
    module: nn.Module, live: Live, expected: LossForm
) -> None:
    found = recognise_loss(module, *live)
    assert found is not None
    assert found == expected._replace(smoothing=found.smoothing, rank=live[0].dim())
    assert found.smoothing == pytest.approx(expected.smoothing)


def focal(self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(x, target, reduction="none")
    return ((1 - (-loss).exp()) ** self.gamma * loss).mean()


def weighted(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, x.new_tensor([1.0] * (CLASSES - 1) + [0.1]))


def with_z_loss(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target) + 1e-4 * x.logsumexp(-1).square().mean()


def binary(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x, F.one_hot(target, CLASSES).to(x.dtype))


def at_a_temperature(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x / self.temperature, target)


def divergence(self: Any, x: Tensor, target: Tensor) -> Tensor:
    near = F.softmax(4 * F.one_hot(target, CLASSES).to(x.dtype) / self.temperature, -1)
    return F.kl_div(F.log_softmax(x / self.temperature, -1), near, reduction="batchmean")


def divergence_from_smoothed(self: Any, x: Tensor, target: Tensor) -> Tensor:
    share = torch.full_like(x, self.smoothing / (CLASSES - 1))
    share.scatter_(1, target.unsqueeze(1), 1 - self.smoothing)
    return F.kl_div(x.log_softmax(1), share, reduction="batchmean")


def with_a_floor(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return -picked((x.softmax(-1) + 1e-12).log(), target).mean()


def clipped_below(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none").clamp(min=1e-6).mean()


def clipped_above(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none").clamp(max=1e5).mean()


def of_the_hardest(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none").topk(len(x) // 2).values.mean()


def mean_of_means(self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(x.transpose(1, 2), target, reduction="none", ignore_index=-100)
    return (loss.sum(1) / (target != -100).sum(1)).mean()


def with_a_margin(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x - 0.35 * F.one_hot(target, CLASSES), target)


def of_what_comes_next(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def smoothed_in_training(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=self.smoothing * self.training)


def of_log_probabilities(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.nll_loss(x, target)


def with_a_penalty_on_sureness(self: Any, x: Tensor, target: Tensor) -> Tensor:
    entropy = -(x.softmax(-1) * x.log_softmax(-1)).sum(-1).mean()
    return F.cross_entropy(x, target) - self.beta * entropy


def with_noise(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x + torch.randn_like(x), target)


def cut(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return picked(x, target).neg().mean() + x.logsumexp(-1).mean().detach()


def noted_down(self: Any, x: Tensor, target: Tensor) -> Tensor:
    loss = F.cross_entropy(x, target)
    self.last = float(loss.detach())
    return loss


def balanced(self: Any, x: Tensor, target: Tensor) -> Tensor:
    share = 1 / torch.bincount(target.flatten(), minlength=CLASSES)[target].to(x.dtype)
    loss = -picked(x.log_softmax(-1), target)
    return (share * loss).sum() / share.sum()


class Clipping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad.clamp(-1, 1)


def clipped_on_the_way_back(self: Any, x: Tensor, target: Tensor) -> Tensor:
    return -picked(Clipping.apply(x).log_softmax(-1), target).mean()  # type: ignore[no-untyped-call]


def with_parts(self: Any, x: Tensor, target: Tensor) -> Any:
    loss = F.cross_entropy(x, target)
    return loss, {"loss": loss.detach()}


@pytest.mark.parametrize(
    ("compute", "own"),
    [
        (focal, {"gamma": 2.0}),
        (weighted, {}),
        (with_z_loss, {}),
        (binary, {}),
        (at_a_temperature, {"temperature": 0.5}),
        (divergence, {"temperature": 2.0}),
        (divergence_from_smoothed, {"smoothing": 0.1}),
        (with_a_floor, {}),
        (clipped_below, {}),
        (clipped_above, {}),
        (of_the_hardest, {}),
        (mean_of_means, {}),
        (with_a_margin, {}),
        (of_what_comes_next, {}),
        (smoothed_in_training, {"smoothing": 0.1}),
        (of_log_probabilities, {}),
        (with_a_penalty_on_sureness, {"beta": 0.1}),
        (with_noise, {}),
        (cut, {}),
        (noted_down, {}),
        (balanced, {}),
        (clipped_on_the_way_back, {}),
        (with_parts, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("live", [FLAT, TEXTS], ids=["rows", "texts"])
def test_what_only_looks_like_a_cross_entropy_is_not_taken_for_one(
    compute: Callable[..., Any], own: dict[str, Any], live: Live
) -> None:
    assert recognise_loss(Loss(compute, **own), *live) is None


class Holding(nn.Module):
    """A cross-entropy with class weights that are all one, today."""

    def __init__(self, *, trained: bool) -> None:
        super().__init__()
        weight = torch.ones(CLASSES)
        self.weight = nn.Parameter(weight) if trained else nn.Buffer(weight)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(x, target, self.weight.detach())


@pytest.mark.parametrize("trained", [True, False])
def test_one_that_holds_tensors_is_not_taken_for_a_cross_entropy(trained: bool) -> None:
    assert recognise_loss(Holding(trained=trained), *FLAT) is None


@pytest.mark.parametrize(
    "args",
    [
        (FLAT[0], FLAT[0]),
        (FLAT[0], FLAT[1].int()),
        (FLAT[0][:, :1], FLAT[1]),
        (FLAT[0],),
        (FLAT[0], FLAT[1], 3),
        (FLAT[0][:3], FLAT[1]),
    ],
    ids=["soft targets", "short indices", "one class", "no targets", "more", "other rows"],
)
def test_what_is_not_given_logits_and_class_indices_is_not_asked(args: tuple[Any, ...]) -> None:
    assert loss_form(Loss(gathered), args) is None


def test_torchs_own_loss_is_known_by_its_type_instead() -> None:
    assert loss_form(nn.CrossEntropyLoss(), FLAT) is None


def test_many_classes_take_as_many_rows_as_stay_cheap() -> None:
    live = torch.zeros(2, 30_000), torch.zeros(2, dtype=torch.long)
    assert recognise_loss(Loss(gathered), *live) == form(rank=2, classes=30_000)


def test_recognising_leaves_module_and_random_numbers_alone() -> None:
    module: Any = Loss(by_children, **CHILDREN)
    fired, before = list[str](), torch.get_rng_state()
    module.register_forward_hook(lambda *_: fired.append("module"))
    module.nll.register_forward_hook(lambda *_: fired.append("child"))
    module.eval()
    assert recognise_loss(module, *FLAT) is not None
    assert torch.equal(torch.get_rng_state(), before)
    assert fired == []
    assert not module.training
