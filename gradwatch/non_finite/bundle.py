"""A failing micro-batch as a file that can be looked into on another machine.

Tensors and primitives only: the file loads with ``torch.load(path, weights_only=True)``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gradwatch.layers import clean_name, is_compiled, unwrapped
from gradwatch.non_finite.bundle_plain import PRIMITIVES, Packer, pack_random
from gradwatch.non_finite.program import Suspects, each_root

if TYPE_CHECKING:
    from gradwatch.findings import Finding
    from gradwatch.non_finite.blame import Blame
    from gradwatch.non_finite.capture import Held
    from gradwatch.non_finite.recipe import Recipe

log = logging.getLogger("gradwatch")

FORMAT = 1
MIB = 1 << 20
PACKAGES = ("gradwatch", "torch", "lightning", "pytorch-lightning", "numpy")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What an investigation was made of, and what it came to.

    Attributes:
        model: The model, as it was before the update.
        held: The micro-batch.
        recipe: How it is begun elsewhere; None where it cannot be.
        suspects: What was seen to be wrong.
        blame: Where the fault was born.
        micro_batches: Micro-batches the step consists of.
    """

    model: nn.Module
    held: Held
    recipe: Recipe | None
    suspects: Suspects
    blame: Blame
    micro_batches: int = 1


class Kept(NamedTuple):
    """What became of a bundle.

    Attributes:
        words: Its path, or why there is none; empty for nothing to say.
        without: What was left out to keep to the bound.
        failed: True where it could not be written.
    """

    words: str = ""
    without: str = ""
    failed: bool = False


def keep_bundle(tried: Tried, finding: Finding, folder: Path, max_bytes: int) -> Kept:
    """Write a bundle; nothing is left behind where that fails, and nothing is raised.

    Args:
        tried: The investigation.
        finding: What will be told.
        folder: Where to; made if it is not there.
        max_bytes: Most bytes of tensors; beyond them the weights are left out, then the batch.

    Returns:
        What to say about it.
    """
    if tried.recipe is None:
        return Kept()
    path = folder / f"step-{finding.step}.pt"
    try:
        bundle, left_out = _compose(tried, tried.recipe, finding, max_bytes)
        _write(bundle, path)
    except Exception as error:  # noqa: BLE001 - a full disk comes as several types
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        log.warning("gradwatch: no bundle is written to %s: %s", folder, reason)
        return Kept(f"not written ({str(reason).partition(chr(10))[0]})", failed=True)
    return Kept(str(path), left_out)


def _compose(
    tried: Tried, recipe: Recipe, finding: Finding, max_bytes: int
) -> tuple[dict[str, Any], str]:
    packer, left_out = Packer(), []
    state = _state(tried.model)
    needed = sum(each.nbytes for each in _tensors(tried, recipe))
    weights = sum(each.nbytes for each in {id(each): each for each in state.values()}.values())
    apart = _not_persistent(tried.model)
    if needed + weights > max_bytes:
        left_out.append(f"weights, {_mib(weights)}")
    if needed > max_bytes:
        left_out.append(f"micro-batch, {_mib(needed)}")
    fits, batch_fits = needed + weights <= max_bytes, needed <= max_bytes
    bare = recipe if batch_fits else replace(recipe, gradients=())
    bundle = {
        **_about(tried, finding),
        "batch": packer.pack(tried.held.batch, "batch") if batch_fits else None,
        "recipe": _packed_recipe(packer, bare),
        "state_dict": packer.pack(_part(state, apart, inside=False), "") if fits else None,
        "buffers": packer.pack(_part(state, apart, inside=True), "") if fits else None,
        "random": pack_random(tried.held.random),
    }
    bound = f"the bound is {_mib(max_bytes)}"
    named = [f"{each} ({bound})" for each in left_out]
    bundle["left_out"] = [*named, *packer.lost, *_refused(tried.model)]
    return bundle, f"{' and '.join(left_out)}: {bound}" if left_out else ""


def _packed_recipe(packer: Packer, recipe: Recipe) -> dict[str, Any]:
    """Pack a recipe; a hyperparameter that is no primitive is left to its default."""
    packed: dict[str, Any] = packer.pack(recipe.plain(), "recipe")
    known = packed["config"].items()
    packed["config"] = {n: v for n, v in known if v is not None or recipe.config[n] is None}
    return packed


def _about(tried: Tried, finding: Finding) -> dict[str, Any]:
    """Give what is small: the finding, the blame, the order of the layers, the versions."""
    held, blame, suspects = tried.held, tried.blame, tried.suspects
    loss = [] if suspects.loss is None else each_root(suspects.loss)
    return {
        "format": FORMAT,
        "versions": {"python": platform.python_version(), **versions()},
        "device": next((each.device.type for each in tried.model.parameters()), "cpu"),
        "finding": _primitives(finding.as_dict()),
        "blame": {
            name: getattr(blame, name)
            for name in ("place", "kind", "phase", "operation", "verdict", "cause_name")
        },
        "suspects": {
            "parameters": list(suspects.parameters),
            "order": list(suspects.order),
            "loss": [each.detach().cpu() for each in loss],
            "compiled": is_compiled(tried.model) or suspects.compiled,
        },
        "batch_index": held.batch_index,
        "micro_batch": held.micro_batch,
        "micro_batches": tried.micro_batches,
        "edited": list(held.edited()),
        "evaluating": [clean_name(n) for n, m in tried.model.named_modules() if not m.training],
        "frozen": _frozen(tried),
    }


def _frozen(tried: Tried) -> list[str]:
    named = ((unwrapped(name), each) for name, each in tried.model.named_parameters())
    toggled = tried.recipe.toggled if tried.recipe else ()
    return [name for name, each in named if not each.requires_grad and name not in toggled]


def _write(bundle: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        torch.save(dict(bundle), part)
        os.replace(part, path)  # noqa: PTH105 - atomic: a crash leaves no torn bundle
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _state(model: nn.Module) -> dict[str, Tensor]:
    """Give every parameter and buffer; asking for a state_dict would wake sharding's hooks."""
    return {name: each for name, each in named_state(model) if _is_plain(each)}


def _part(state: Mapping[str, Tensor], names: set[str], *, inside: bool) -> dict[str, Tensor]:
    return {name: each for name, each in state.items() if (name in names) is inside}


def named_state(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Name every parameter and buffer as the user wrote it; tied ones under each name.

    Args:
        model: The model.
    """
    parameters = model.named_parameters(remove_duplicate=False)
    named = [*parameters, *model.named_buffers(remove_duplicate=False)]
    return [(unwrapped(name), each) for name, each in named]


def _not_persistent(model: nn.Module) -> set[str]:
    return {
        unwrapped(f"{name}.{own}".lstrip("."))
        for name, module in model.named_modules()
        for own in module._non_persistent_buffers_set  # noqa: SLF001 - no public way to ask
    }


def _refused(model: nn.Module) -> list[str]:
    refused = ((name, each) for name, each in named_state(model) if not _is_plain(each))
    return [f"state_dict[{name!r}]: {type(each).__name__}, not saved" for name, each in refused]


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in {Tensor, nn.Parameter} and not tensor.is_meta


def versions() -> dict[str, str]:
    """Give the versions of what computes."""
    known: dict[str, str] = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            known[package] = metadata.version(package)
    return known


def _tensors(tried: Tried, recipe: Recipe) -> list[Tensor]:
    grads = [each for each in recipe.gradients if each is not None]
    # By identity: a tensor that stands in two places is written once.
    own = {id(each): each for _, each in tried.held.tensors()}
    return [*grads, *own.values()]


def _primitives(value: Any) -> Any:  # noqa: ANN401 - a finding's containers
    if isinstance(value, Mapping):
        return {str(key): _primitives(inner) for key, inner in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value if type(value) in PRIMITIVES else str(value)


def _mib(count: int) -> str:
    return f"{count / MIB:,.1f} MiB" if count >= MIB else f"{count:,} bytes"
