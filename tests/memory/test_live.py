"""Tensors that keep a graph alive, found among all that Python holds."""

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwatch.memory import Held, census, describe, grown
from gradwatch.memory.live import Older, with_graph

COLLECTED: list[Tensor] = []


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.losses: list[Tensor] = []
        self.history: dict[str, list[Tensor]] = {"train": []}
        self.pairs: list[tuple[int, Tensor]] = []


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Tensor] = []


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    yield
    COLLECTED.clear()


def run(keep: Callable[[Keeps, Tensor], Any], steps: int = 20) -> list[Held]:
    model = nn.Sequential(Keeps())
    before = census()
    for _ in range(steps):
        inner: Any = model[0]
        keep(inner, inner.lin(torch.ones(2, 3)).logsumexp((0, 1)))
    return describe(grown(before, census(), steps), model)


RECORDER = Recorder()


@pytest.mark.parametrize(
    ("keep", "holder"),
    [
        (lambda model, loss: model.losses.append(loss), "0.losses[…]"),
        (lambda model, loss: model.history["train"].append(loss), "0.history['train'][…]"),
        (lambda model, loss: model.pairs.append((1, loss)), "0.pairs[…][…]"),
        (lambda model, loss: COLLECTED.append(loss), "COLLECTED[…]"),
        (lambda model, loss: RECORDER.seen.append(loss), "Recorder.seen[…]"),
    ],
    ids=["a list of a module", "a dict of lists", "a list of pairs", "a global", "an object"],
)
def test_a_list_of_losses_is_found_where_it_lies(
    keep: Callable[[Keeps, Tensor], Any], holder: str
) -> None:
    (held,) = run(keep)
    assert (held.operation, held.shape, held.number, held.retained) == ("logsumexp", (), 20, 0)
    assert held.holder.endswith(holder)
    RECORDER.seen.clear()


def test_a_local_list_is_called_one() -> None:
    kept: list[Tensor] = []
    (held,) = run(lambda model, loss: kept.append(loss))
    # A closure's variable has a cell, and that is all that refers to the list.
    assert held.number == len(kept) == 20


def test_running_functions_that_hold_a_few_are_not_what_holds_them_all() -> None:
    def ask_with_some(kept: list[Tensor], depth: int) -> list[Held]:
        loss = kept[-depth] if depth else kept[0]
        if depth < 5:
            return ask_with_some(kept, depth + 1)
        assert loss.grad_fn is not None
        return describe([("logsumexp", ())], nn.Linear(1, 1), older)

    older = Older()
    RECORDER.seen += [torch.ones(2, requires_grad=True).logsumexp(0) for _ in range(12)]
    (held,) = ask_with_some(RECORDER.seen, 0)
    assert (held.number, held.holder) == (12, "Recorder.seen[…]")
    RECORDER.seen.clear()


def test_the_older_ones_are_left_out_and_let_go() -> None:
    kept = [torch.ones(2, requires_grad=True).logsumexp(0)]
    older, known = Older(), weakref.ref(kept[0])
    kept.append(torch.ones(2, requires_grad=True).logsumexp(0))
    assert [
        tensor is kept[1] for tensor in with_graph(older) if any(tensor is each for each in kept)
    ] == [True]
    kept.clear()
    assert known() is None


def test_detached_losses_are_not_found() -> None:
    assert run(lambda model, loss: model.losses.append(loss.detach())) == []


def test_outputs_that_keep_their_gradient_are_counted() -> None:
    def keep(model: Keeps, loss: Tensor) -> None:
        # Sizes that nothing else in this process is likely to have.
        out = model.lin(torch.ones(11, 3))
        out.retain_grad()
        model.losses.append(out)

    (held,) = run(keep)
    assert (held.operation, held.shape, held.retained) == ("addmm", (11, 3), 20)
    assert held.nbytes == 20 * 11 * 3 * 4


def test_a_look_lets_everything_go_again() -> None:
    run(lambda model, loss: model.losses.append(loss))
    before = census()
    run(lambda model, loss: model.losses.append(loss))
    assert grown(before, census(), 20) == []


def test_one_more_in_three_steps_is_no_growth() -> None:
    kind = ("sum", ())
    assert grown({kind: 4}, {kind: 10}, 20) == []
    assert grown({kind: 4}, {kind: 14}, 20) == [kind]
    assert grown({}, {kind: 30, ("exp", (2,)): 40}, 20) == [("exp", (2,)), kind]
