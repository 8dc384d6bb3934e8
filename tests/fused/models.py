"""transformers' architectures in small, with random weights, and what can be swapped in them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SMALL: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
IDS = torch.arange(12).view(2, 6) % 7
LABELS = torch.tensor([0, 1])
Made = tuple[nn.Module, Callable[[nn.Module, Any], Tensor]]


def _text(model: nn.Module, _batch: Any) -> Tensor:
    return model(input_ids=IDS, labels=IDS).loss


def _texts(model: nn.Module, _batch: Any) -> Tensor:
    return model(input_ids=IDS, labels=LABELS).loss


def _images(model: nn.Module, _batch: Any) -> Tensor:
    pixels = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8).sin()
    return model(pixel_values=pixels, labels=LABELS).loss


def make_llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=16, num_hidden_layers=1, num_key_value_heads=2, **SMALL)
    return LlamaForCausalLM(config), _text


def make_t5() -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config: Any = T5Config(
        vocab_size=16, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config), _text


def make_bert() -> Made:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(vocab_size=16, num_hidden_layers=1, **SMALL)
    return BertForSequenceClassification(config), _texts


def make_vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_hidden_layers=1, image_size=8, patch_size=4, **SMALL)
    return ViTForImageClassification(config), _images


def make_resnet() -> Made:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic")
    return ResNetForImageClassification(config), _images


MODELS: dict[str, Callable[[], Made]] = {
    "Llama": make_llama,
    "T5": make_t5,
    "BERT": make_bert,
    "ViT": make_vit,
    "ResNet": make_resnet,
}
