"""What can be swapped in transformers' models: all of it is listed, and all of it agrees."""

import pytest
import torch

from gradwatch.fused.candidates import find
from gradwatch.fused.observe import observe, record
from gradwatch.fused.parity import check
from gradwatch.fused.providers import Bundled
from tests.fused.lab import make_bench
from tests.fused.models import MODELS

pytest.importorskip("transformers", reason="transformers is not installed")

# Names and kinds, chains and single modules.
EXPECTED = {
    "Llama": {
        ("<root>", "cross-entropy"),
        ("model.layers.0", "add → RMSNorm"),
        ("model.layers.0.mlp", "silu gate"),
        ("model.layers.0.input_layernorm", "RMSNorm by hand"),
        ("model.layers.0.post_attention_layernorm", "RMSNorm by hand"),
        ("model.norm", "RMSNorm by hand"),
    },
    "T5": {
        ("<root>", "cross-entropy"),
        # A block's last addition and the norm behind the last block; T5's layers are modules, too.
        ("encoder", "add → RMSNorm"),
        ("encoder.block.0", "add → RMSNorm"),
        ("decoder.block.0", "add → RMSNorm"),
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
    "BERT": {
        ("<root>", "cross-entropy"),
        ("bert.encoder.layer.0.attention.output", "add → LayerNorm"),
        ("bert.encoder.layer.0.intermediate", "Linear → gelu"),
        ("bert.encoder.layer.0.output", "add → LayerNorm"),
        ("bert.embeddings.LayerNorm", "LayerNorm"),
        ("bert.encoder.layer.0.attention.output.LayerNorm", "LayerNorm"),
        ("bert.encoder.layer.0.output.LayerNorm", "LayerNorm"),
    },
    "ViT": {
        ("<root>", "cross-entropy"),
        ("vit", "add → LayerNorm"),
        ("vit.layers.0", "add → LayerNorm"),
        ("vit.layers.0.mlp", "Linear → gelu"),
        ("vit.layers.0.layernorm_before", "LayerNorm"),
        ("vit.layers.0.layernorm_after", "LayerNorm"),
        ("vit.layernorm", "LayerNorm"),
    },
    "ResNet": {
        ("<root>", "cross-entropy"),
        ("resnet.embedder.embedder", "BatchNorm2d → relu"),
        ("resnet.embedder.embedder.normalization", "BatchNorm2d"),
        ("resnet.encoder.stages.0.layers.0", "BatchNorm2d → add → relu"),
        ("resnet.encoder.stages.0.layers.0.layer.0", "BatchNorm2d → relu"),
        ("resnet.encoder.stages.0.layers.0.layer.0.normalization", "BatchNorm2d"),
        ("resnet.encoder.stages.0.layers.0.layer.1.normalization", "BatchNorm2d"),
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_every_candidate_is_listed_and_agrees(name: str) -> None:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    # A trial comes when steps have been taken: in the first one transformers fills its config in.
    loss(model.train(), None)
    bench = make_bench(model, torch.zeros(1), loss)
    with bench.opened():
        found = find(model, observe(bench, list), [Bundled()])
        listed = {(each.layer, each.kind) for each in found.candidates}
        assert listed == EXPECTED[name]
        faults: dict[tuple[str, str], str] = {}
        for each in found.candidates:
            calls = record(bench, list, each)
            for operation, call in zip(each.operations, calls, strict=True):
                assert call is not None
                reason = check(operation, each.module, call, 120.0).reason
                faults |= {(each.layer, operation.kind): reason} if reason else {}
    assert faults == {}
