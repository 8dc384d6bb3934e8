"""Look into a bundle again: build the model, run the micro-batch, compare what is found."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradwatch.errors import ConfigurationError, nearest
from gradwatch.findings import Finding
from gradwatch.layers import unwrap, unwrapped
from gradwatch.non_finite.blame import NO_REPLAY, Blame
from gradwatch.non_finite.bundle import FORMAT, named_state, versions
from gradwatch.non_finite.bundle_plain import unpack, unpack_random
from gradwatch.non_finite.capture import Held, hold
from gradwatch.non_finite.describe import finding_of
from gradwatch.non_finite.program import ModelProgram, Program, Suspects
from gradwatch.non_finite.recipe import Recipe
from gradwatch.non_finite.replay import investigate
from gradwatch.non_finite.verdicts import meaning_of
from gradwatch.words import one_line


class BundleError(ConfigurationError):
    """A bundle that cannot be looked into, or a model that does not fit it."""


@dataclass(frozen=True, kw_only=True)
class Again:
    """What was told then, and what a replay shows now.

    Attributes:
        then: The finding of the run.
        verdict_then: Its verdict.
        now: The finding of the replay.
        verdict_now: Its verdict.
        same: Whether the same operation of the same layer is at fault again.
        ran: Whether the step could be run at all.
        notes: What is not as it was: left out of the bundle, another device or version.
    """

    then: Finding
    verdict_then: str
    now: Finding
    verdict_now: str
    same: bool
    ran: bool
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Give everything as lines of text."""
        outcome = "the same fault" if self.same else "not the fault that was told then"
        outcome = outcome if self.ran else "the step could not be run"
        verdicts = f"{outcome} (then: {self.verdict_then}; now: {self.verdict_now})"
        meaning = meaning_of(self.verdict_now)
        notes = [f"note: {note}" for note in self.notes]
        told = ["told then", *self.then.lines(), "", "replayed now", *self.now.lines(), ""]
        words = [f"means: {meaning.means}", f"next: {meaning.next_step}"]
        return [*told, *notes, f"verdict: {verdicts}", *words]


def load_bundle(path: Path) -> dict[str, Any]:
    """Read a bundle; nothing but tensors and primitives is let in.

    Args:
        path: The file.

    Returns:
        Its contents, on the CPU.

    Raises:
        BundleError: If it is no bundle, or one of another format.
    """
    try:
        bundle = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        message = f"{path} cannot be read as a bundle: {one_line(error)}"
        raise BundleError(message) from error
    found = bundle.get("format") if isinstance(bundle, dict) else None
    if not isinstance(bundle, dict) or found != FORMAT:
        message = f"{path} is no bundle of format {FORMAT}; its format is {found!r}"
        raise BundleError(message)
    return bundle


def find_factory(target: str) -> Callable[..., Any]:
    """Import ``package.module:name``, with the working directory on the path.

    Args:
        target: Where the factory stands.

    Returns:
        A function or class that makes the model.

    Raises:
        BundleError: If there is no such thing.
    """
    place, _, name = target.partition(":")
    if not place or not name:
        message = f"--model must be written package.module:factory; got {target!r}"
        raise BundleError(message)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(place)
    except Exception as error:
        message = f"--model {target}: {place} cannot be imported: {one_line(error)}"
        raise BundleError(message) from error
    factory = getattr(module, name, None)
    if not callable(factory):
        message = f"--model {target}: {place} has no {name!r} ({nearest(name, vars(module))})"
        raise BundleError(message)
    known: Callable[..., Any] = factory
    return known


def replay_bundle(path: Path, factory: Callable[..., Any]) -> Again:
    """Run the micro-batch of a bundle again on the CPU.

    Args:
        path: The bundle.
        factory: Makes the model: a plain module, or the LightningModule. A class is handed
            the hyperparameters the module had saved.

    Returns:
        What was told then and what is found now.

    Raises:
        BundleError: If the bundle holds no micro-batch, or the model does not fit.
    """
    bundle = load_bundle(path)
    if bundle["batch"] is None:
        message = f"{path} holds no micro-batch: {'; '.join(bundle['left_out'])}"
        raise BundleError(message)
    recipe = Recipe(**bundle["recipe"])
    model = _model(factory, recipe)
    notes = [*bundle["left_out"], *_unlike(bundle), *_fill(model, bundle)]
    held = _held(bundle)
    blame = investigate(model, held, _program(model, held, recipe), _suspects(bundle))
    return _compared(bundle, blame, tuple(notes))


def _model(factory: Callable[..., Any], recipe: Recipe) -> nn.Module:
    try:
        model = factory(**recipe.config) if inspect.isclass(factory) else factory()
    except Exception as error:
        message = f"the factory failed: {one_line(error)}"
        raise BundleError(message) from error
    if not isinstance(model, nn.Module):
        message = f"the factory made {type(model).__name__}, not a torch.nn.Module"
        raise BundleError(message)
    model = unwrap(model)
    if recipe.kind != "model" and not callable(getattr(model, "training_step", None)):
        message = f"the bundle is of a LightningModule; the factory made {type(model).__name__}"
        raise BundleError(message)
    return model.cpu().train()


def _fill(model: nn.Module, bundle: Mapping[str, Any]) -> list[str]:
    """Give the model the weights, modes and types it had; say what is missing."""
    for name, module in model.named_modules():
        if unwrapped(name) in bundle["evaluating"]:
            module.training = False
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(unwrapped(name) not in bundle["frozen"])
    if bundle["state_dict"] is None:
        return ["the weights are the factory's own: the bundle holds none"]
    saved = {**bundle["state_dict"], **bundle["buffers"]}
    own = dict(named_state(model))
    _refuse(own, saved)
    with torch.no_grad():
        for name, tensor in own.items():
            if name in saved:
                _put(tensor, saved[name])
    absent = sorted(own.keys() - saved.keys())
    return [f"kept as the factory made them: {', '.join(absent)}"] if absent else []


def _refuse(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Refuse a model that has no place for a saved tensor, or one of another shape."""
    unknown = sorted(saved.keys() - own.keys())
    unlike = [
        f"{name} is {tuple(saved[name].shape)}, the model's {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in saved and not is_lazy(tensor) and tensor.shape != saved[name].shape
    ]
    if unknown or unlike:
        told = [f"no {name} in the model ({nearest(name, own)})" for name in unknown[:3]]
        message = f"the model does not fit the bundle: {'; '.join([*told, *unlike[:3]])}"
        raise BundleError(message)


def _put(tensor: Tensor, saved: Tensor) -> None:
    if is_lazy(tensor):
        tensor.materialize(saved.shape, dtype=saved.dtype)
    if tensor.dtype != saved.dtype:
        tensor.data = tensor.data.to(saved.dtype)
    tensor.data.copy_(saved)


def _held(bundle: Mapping[str, Any]) -> Held:
    held = hold(unpack(bundle["batch"]), bundle["batch_index"], bundle["micro_batch"])
    return Held(**{**vars(held), "random": unpack_random(bundle["random"])})


def _program(model: nn.Module, held: Held, recipe: Recipe) -> Program:
    if recipe.kind == "model":
        args, kwargs = held.batch
        return ModelProgram(model, args, kwargs, recipe.gradients, recipe.autocast)
    from gradwatch.callbacks.bundled import bundled_program

    return bundled_program(model, held, recipe)


def _suspects(bundle: Mapping[str, Any]) -> Suspects:
    known = bundle["suspects"]
    comparable = not _unlike(bundle) and known["loss"] and bundle["state_dict"] is not None
    return Suspects(
        parameters=known["parameters"],
        # Another device or version rounds differently: its loss proves nothing.
        loss=known["loss"] if comparable else None,
        order=known["order"],
        compiled=known["compiled"],
    )


def _unlike(bundle: Mapping[str, Any]) -> list[str]:
    notes = []
    if bundle["device"] != "cpu":
        notes.append(f"run on {bundle['device']}, replayed on the CPU with its own random numbers")
    then, now = bundle["versions"].get("torch", ""), versions().get("torch", "")
    if then != now:
        notes.append(f"run with torch {then}, replayed with {now}")
    return notes


def _compared(bundle: Mapping[str, Any], blame: Blame, notes: tuple[str, ...]) -> Again:
    then = bundle["blame"]
    known = ("place", "kind", "phase", "operation")
    same = bool(blame.kind) and all(getattr(blame, name) == then[name] for name in known)
    finding = bundle["finding"]
    return Again(
        then=Finding(**finding),
        verdict_then=then["verdict"],
        now=finding_of(blame, finding["step"], micro_batches=bundle["micro_batches"]),
        verdict_now=blame.verdict,
        same=same,
        ran=not blame.verdict.startswith(NO_REPLAY),
        notes=notes,
    )
