"""What Liger is asked for in transformers' models, and that all of it agrees."""

from typing import Any

import pytest
import torch

from gradwatch.fused.candidates import find
from gradwatch.fused.liger import Liger
from gradwatch.fused.observe import observe, record
from gradwatch.fused.parity import check
from tests.fused.lab import make_bench
from tests.fused.models import IDS, MODELS, SMALL, Made

pytest.importorskip("transformers", reason="transformers is not installed")


def make_gemma() -> Made:
    from transformers import GemmaConfig, GemmaForCausalLM

    config: Any = GemmaConfig(
        vocab_size=16, num_hidden_layers=1, num_key_value_heads=2, head_dim=16, pad_token_id=0,
        **SMALL,
    )  # fmt: skip
    return GemmaForCausalLM(config), lambda model, _: model(input_ids=IDS, labels=IDS).loss


def kinds_of(decoder: str, norm: str, gate: str) -> set[tuple[str, str]]:
    return {
        (decoder, f"add → {norm}"),
        (f"{decoder}.mlp", gate),
        (f"{decoder}.input_layernorm", f"{norm} by hand"),
        (f"{decoder}.post_attention_layernorm", f"{norm} by hand"),
        ("model.norm", f"{norm} by hand"),
    }


EXPECTED = {
    "Llama": kinds_of("model.layers.0", "RMSNorm", "silu gate"),
    "Gemma": kinds_of("model.layers.0", "RMSNorm of 1 + weight", "gelu_tanh gate"),
    "T5": {
        ("encoder.block.0.layer.1.DenseReluDense", "gelu_tanh gate"),
        ("decoder.block.0.layer.2.DenseReluDense", "gelu_tanh gate"),
        ("encoder.block.0.layer.0.layer_norm", "RMSNorm by hand"),
        ("encoder.block.0.layer.1.layer_norm", "RMSNorm by hand"),
        ("encoder.final_layer_norm", "RMSNorm by hand"),
        ("decoder.block.0.layer.0.layer_norm", "RMSNorm by hand"),
        ("decoder.block.0.layer.1.layer_norm", "RMSNorm by hand"),
        ("decoder.block.0.layer.2.layer_norm", "RMSNorm by hand"),
        ("decoder.final_layer_norm", "RMSNorm by hand"),
    },
}


# The interpreter multiplies bfloat16 numbers as if they were integers; of halves it knows float16.
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("Llama", torch.float32), ("Gemma", torch.float16), ("T5", torch.float32)],
)
def test_candidates_are_found_and_all_of_them_agree(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, loss = make_gemma() if name == "Gemma" else MODELS[name]()
    bench = make_bench(model.train().to(dtype), torch.zeros(1), loss)
    with bench.opened():
        found = find(model, observe(bench, list), [Liger()])
        assert EXPECTED[name] <= {(each.layer, each.kind) for each in found.candidates}
        faults: dict[tuple[str, str], str] = {}
        for each in found.candidates:
            calls = record(bench, list, each)
            for operation, call in zip(each.operations, calls, strict=True):
                assert call is not None
                reason = check(operation, each.module, call, 120.0).reason
                faults |= {(each.layer, operation.kind): reason} if reason else {}
    assert faults == {}
