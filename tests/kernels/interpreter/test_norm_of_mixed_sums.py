"""A sum of two types is normalised in the type torch promotes them to, as under autocast."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradwatch.fused import add_layer_norm, add_rms_norm
from gradwatch.fused.behaviour import NormForm
from gradwatch.fused.norms import fused_add_norm, refuse_add_norm

Check = Callable[..., None]
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16


def stock(s: Tensor, w: Tensor, centred: bool) -> Tensor:
    return F.layer_norm(s, (48,), w) if centred else F.rms_norm(s, (48,), w, 1e-5)


@pytest.mark.parametrize("add", [add_layer_norm, add_rms_norm])
@pytest.mark.parametrize(
    ("x_type", "r_type"), [(BF16, FP32), (FP32, BF16), (FP16, FP32), (BF16, FP16)]
)
def test_sum_norm_and_gradients_come_in_their_own_types(
    add: Callable[..., tuple[Tensor, Tensor]],
    x_type: torch.dtype,
    r_type: torch.dtype,
    no_worse_than_stock: Check,
) -> None:
    x, r = torch.randn(2, 9, 48).unbind()
    x, r, w = x.to(x_type), r.to(r_type), torch.randn(48)
    dy, ds = torch.randn(2, 9, 48).unbind()

    def outcome(dtype: torch.dtype | None) -> list[Tensor]:
        a, b, v = (t.detach().to(dtype or t.dtype).requires_grad_() for t in (x, r, w))
        if dtype is None:
            y, s = add(a, b, (48,), v, eps=1e-5)
        else:
            s = a + b
            y = stock(s, v, add is add_layer_norm)
        grads = torch.autograd.grad([y, s], [a, b, v], [dy.to(y.dtype), ds.to(s.dtype)])
        return [y.detach(), s.detach(), *grads]

    ours, theirs, exact = outcome(None), outcome(FP32), outcome(torch.float64)
    assert [t.dtype for t in ours] == [FP32, FP32, x_type, r_type, FP32]
    assert torch.equal(ours[1], x + r)
    for got, reference, true in zip(ours, theirs, exact, strict=True):
        no_worse_than_stock(got, reference.to(got.dtype), true)


def test_a_short_branch_and_a_long_residual_are_taken_and_others_told() -> None:
    norm = nn.LayerNorm(48)
    form = NormForm(True, 1e-5, weight="weight", bias="bias", promotes=False)
    x, r = torch.randn(2, 9, 48).bfloat16().unbind()
    assert refuse_add_norm(form, norm, x, r.float()) is None
    y, total = fused_add_norm(form)(norm, x, r.float())
    torch.testing.assert_close(total, x + r.float(), rtol=0, atol=0)
    torch.testing.assert_close(y, norm(total))
    assert y.dtype == FP32
    assert refuse_add_norm(form, norm, x, r[:1]) == "a (1, 48) is added to a (9, 48)"
    assert "float64" in str(refuse_add_norm(form, norm, x, r.double()))
    first = form._replace(dim=1)
    assert "channels" in str(refuse_add_norm(first, norm, x, r))
