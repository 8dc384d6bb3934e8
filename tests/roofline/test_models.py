"""Architectures of transformers, small and with random weights, without special cases."""

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn

from gradwatch.roofline import RooflineOptions, profile

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ONCE = RooflineOptions(warmup_steps=0, timed_steps=1, traced_steps=1)
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}

Made = tuple[nn.Module, Mapping[str, Tensor]]


def make_bert() -> Made:
    config = transformers.BertConfig(**SMALL, vocab_size=100)
    tokens = {"input_ids": torch.arange(16).reshape(2, 8), "labels": torch.tensor([0, 1])}
    return transformers.BertForSequenceClassification(config), tokens


def make_gpt2() -> Made:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100)
    tokens = torch.arange(16).reshape(2, 8)
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def make_vit() -> Made:
    config = transformers.ViTConfig(**SMALL, image_size=16, patch_size=8)
    images = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return transformers.ViTForImageClassification(config), images


def make_resnet() -> Made:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    images = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    return transformers.ResNetForImageClassification(config), images


# Layers that each of them has, and operations that must be found in them.
@pytest.mark.parametrize(
    ("make", "layer"),
    [
        (make_bert, "bert.encoder.layer.0.attention.self.query"),
        (make_gpt2, "transformer.h.1.mlp.c_fc"),
        (make_vit, "vit.embeddings.patch_embeddings.projection"),
        (make_resnet, "resnet.embedder.embedder.convolution"),
    ],
    ids=["bert", "gpt2", "vit", "resnet"],
)
def test_each_layer_is_profiled_forward_and_backward(make: Callable[[], Made], layer: str) -> None:
    model, batch = make()
    told = profile(model.train(), batch, options=ONCE)
    assert told.notes == ()
    layers = {own.layer: own for own in told.layers}
    own = layers[layer]
    assert own.flops > 0
    assert own.forward_seconds > 0
    assert own.backward_seconds > 0
    with_weights = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    assert with_weights - set(layers) == set()
