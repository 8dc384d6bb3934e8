"""Every cause of the table is provoked for real and named; what is mended is clean."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from gradwatch.non_finite.blame import REPRODUCIBLE, Blame
from gradwatch.non_finite.capture import hold
from gradwatch.non_finite.causes import CAUSES
from gradwatch.non_finite.program import ClosureProgram, ModelProgram, Suspects
from gradwatch.non_finite.replay import investigate
from tests.modules import Apply

DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EXAMPLES: dict[str, Any] = load("causes_examples").EXAMPLES
EACH = [(name, dtype) for name, example in EXAMPLES.items() for dtype in example.dtypes]


def squared(out: Tensor, y: Tensor) -> Tensor:
    return (out - y).pow(2).mean()


class Step:
    """The step of an example: its parts are those the code gives, the rest plain."""

    def __init__(self, code: str, dtype: torch.dtype) -> None:
        self.parts: dict[str, Any] = {"torch": torch, "nn": nn, "functional": functional}
        exec(code, self.parts)  # noqa: S102 - the documentation's own examples
        torch.manual_seed(1)
        layer = Apply(self.parts.get("layer", lambda x: x))
        self.net = nn.Sequential(
            nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), layer, nn.Linear(8, 8), nn.Tanh(),
            nn.Linear(8, 4),
        )  # fmt: skip
        with torch.no_grad():
            self.parts.get("prepare", lambda net: None)(self.net)
        self.net.to(dtype)
        x, self.y = torch.randn(6, 8).to(dtype), torch.randn(6, 4).to(dtype)
        self.x = self.parts.get("batch", lambda x: x)(x)
        self.y = self.parts.get("labels", lambda y: y)(self.y)

    def run(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss: Callable[[Tensor, Tensor], Tensor] = self.parts.get("loss", squared)
        return loss(self.net(batch[0]), batch[1])

    def program(self) -> tuple[Any, ClosureProgram | ModelProgram, Tensor]:
        """Run the step once; give what is held, how to run it again, and its loss."""
        batch = (self.x, self.y)
        if "outside" in self.parts:
            out = self.net(self.x)
            loss = self.parts["outside"](out, self.y)
            (grad,) = torch.autograd.grad(loss, out, retain_graph=True)
            loss.backward()
            return hold(batch), ModelProgram(self.net, (self.x,), {}, [grad]), out
        held = hold(batch)
        loss = self.run(batch)
        loss.backward()
        return held, ClosureProgram(self.run, held.batch), loss

    def blame(self) -> Blame:
        held, program, loss = self.program()
        bad = self.bad_parameters()
        assert bad or not torch.isfinite(loss).all(), "nothing went wrong"
        suspects = Suspects(parameters=bad, loss=loss.detach())
        return investigate(self.net, held, program, suspects)

    def bad_parameters(self) -> list[str]:
        named = self.net.named_parameters()
        return [n for n, p in named if p.grad is not None and not torch.isfinite(p.grad).all()]


def test_the_page_of_the_documentation_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    assert load("causes").page() == (DOCS / "causes.md").read_text(encoding="utf-8")


def test_an_operation_the_table_does_not_know_gives_evidence_and_no_guess() -> None:
    code = """
def layer(x):
    return x + torch.special.bessel_y0(torch.relu(x))
"""
    blame = Step(code, torch.float32).blame()
    assert (blame.place, blame.operation) == ("3", "aten::special_bessel_y0")
    assert (blame.cause_name, blame.cause, blame.remedy) == ("", "", "")
    assert "zero" in str(blame.evidence["inputs"])
    assert "-inf" in str(blame.evidence["outputs"])


def test_every_row_of_the_table_has_an_example() -> None:
    assert list(EXAMPLES) == [row.name for row in CAUSES]
    assert len(CAUSES) >= 24


@pytest.mark.filterwarnings("ignore:std\\(\\). degrees of freedom is <= 0:UserWarning")
@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_the_cause_is_named_with_its_layer_and_phase(name: str, dtype: str) -> None:
    example = EXAMPLES[name]
    blame = Step(example.broken, getattr(torch, dtype)).blame()
    told = (blame.cause_name, blame.place, blame.phase, blame.verdict)
    assert told == (name, example.place, example.phase, REPRODUCIBLE), blame
    assert blame.cause
    assert blame.remedy


@pytest.mark.parametrize(("name", "dtype"), EACH)
def test_the_mended_example_is_clean(name: str, dtype: str) -> None:
    step = Step(EXAMPLES[name].mended, getattr(torch, dtype))
    _, _, loss = step.program()
    assert torch.isfinite(loss).all()
    assert step.bad_parameters() == []
