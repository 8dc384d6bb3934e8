"""A profile of a plain module and a batch, outside of any training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from gradwatch.errors import ConfigurationError
from gradwatch.hooks import tensors_in
from gradwatch.layers import unwrap
from gradwatch.roofline.assemble import assemble, dtypes_of
from gradwatch.roofline.ceilings import Ceilings, measure_ceilings
from gradwatch.roofline.options import RooflineOptions
from gradwatch.roofline.profile import Profile
from gradwatch.roofline.study import Study

NO_LOSS = (
    "the module's output holds no floating-point tensor that requires a gradient, so there is no "
    "backward to profile: give loss=, a function of the output, or a module with parameters that "
    "train"
)


def profile(
    module: nn.Module,
    batch: Any,  # noqa: ANN401 - whatever the module takes
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    options: RooflineOptions | None = None,
    ceilings: Ceilings | None = None,
) -> Profile:
    """Profile a module on one batch and say what bounds each of its layers.

    Parameters, buffers, gradients and random state are afterwards what they were before;
    with an optimizer its updates are real and stay. Gradients are recorded also where the
    caller has switched them off.

    Args:
        module: The module, in the mode (training or not) it is to be profiled in.
        batch: A tensor; a tuple or list of positional arguments; a mapping of keyword ones;
            anything else is the one argument. What would be taken apart and is meant as one
            argument stands in a tuple: ``(batch,)``.
        loss: Gives a scalar from the module's output; by default its ``loss`` if there is
            one, else the sum of all its floating-point outputs.
        optimizer: Steps after each backward, so that its share is seen; None leaves it out.
        options: How many steps are looked at.
        ceilings: What the machine can do; measured, or recalled, by default.

    Returns:
        The profile.

    Raises:
        ConfigurationError: If there is nothing to run backward from, or an argument cannot be
            meant.

    Examples:
        >>> quick = RooflineOptions(warmup_steps=1, timed_steps=1, traced_steps=1)
        >>> machine = Ceilings(
        ...     device="toy",
        ...     copy_bytes_per_second=1e10,
        ...     matrix_flops_per_second={"float32": 1e11},
        ...     launch_seconds=1e-3,
        ... )
        >>> told = profile(
        ...     nn.Linear(64, 64), torch.ones(8, 64), options=quick, ceilings=machine
        ... )
        >>> told.layers[0].layer, told.layers[0].kind
        ('<root>', 'launch-bound')
    """
    chosen = options or RooflineOptions()
    _refuse(module, batch, chosen)
    model, study = unwrap(module), Study(unwrap(module), chosen)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(mode=False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_restored(model, batch, keep_weights=optimizer is not None))
        stack.callback(study.close)
        for _ in range(study.steps_needed):
            _step(module, batch, loss, optimizer, study)
        study.cross("before_forward")
    evidence = study.evidence
    known = ceilings or measure_ceilings(
        evidence.device, dtypes_of(evidence), refresh=chosen.refresh_ceilings
    )
    return assemble(evidence, known)


def _refuse(module: object, batch: object, options: object) -> None:
    if not isinstance(module, nn.Module):
        message = f"profile takes a torch.nn.Module; got {type(module).__name__}"
        raise ConfigurationError(message)
    if not isinstance(options, RooflineOptions):
        message = f"options must be RooflineOptions(...); got {options!r}"
        raise ConfigurationError(message)
    own = (*module.named_parameters(), *module.named_buffers())
    empty = next((name for name, tensor in own if tensor.is_meta), "")
    if empty:
        raise ConfigurationError(
            f"{empty} is on the meta device, where nothing runs: give the module room first, "
            "module.to_empty(device=...), then values, by load_state_dict or its initialisation"
        )
    if any(tensor.is_meta for tensor in tensors_in(batch)):
        raise ConfigurationError(
            "the batch is on the meta device, where nothing runs: give one with values, such as "
            "torch.randn_like(batch, device=...)"
        )


def _step(
    module: nn.Module,
    batch: Any,  # noqa: ANN401 - as above
    loss: Callable[[Any], Tensor] | None,
    optimizer: torch.optim.Optimizer | None,
    study: Study,
) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    study.cross("before_forward")
    root = _checked((loss or _usual_loss)(_call(module, batch)))
    study.cross("after_forward")
    study.cross("before_backward")
    study.before_backward((root,))
    root.backward()
    study.cross("after_backward")
    if optimizer is not None:
        optimizer.step()
    study.cross("after_step")


def _checked(root: object) -> Tensor:
    if not isinstance(root, Tensor) or root.numel() != 1 or root.is_complex():
        got = f"{tuple(root.shape)} {root.dtype}" if isinstance(root, Tensor) else repr(root)
        raise ConfigurationError(
            f"the loss must be one real number, as a tensor; got {got}: give loss=, a function of "
            "the output"
        )
    if not root.requires_grad:
        raise ConfigurationError(NO_LOSS)
    return root


def _call(module: nn.Module, batch: Any) -> Any:  # noqa: ANN401 - as above
    if isinstance(batch, Mapping):
        return module(**batch)
    if isinstance(batch, tuple | list):
        return module(*batch)
    return module(batch)


def _usual_loss(output: Any) -> Tensor:  # noqa: ANN401 - as above
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    floats = [each for each in tensors_in(output) if each.is_floating_point()]
    wanted = [each for each in floats if each.requires_grad]
    if not wanted:
        raise ConfigurationError(NO_LOSS)
    return torch.stack([each.float().sum() for each in wanted]).sum()


@contextlib.contextmanager
def _restored(model: nn.Module, batch: object, *, keep_weights: bool) -> Iterator[None]:
    """Put gradients, buffers and random state back as they were."""
    given = (own for own in tensors_in(batch) if own.is_leaf and own.requires_grad)
    grads = {own: own.grad for own in (*model.parameters(), *given)}
    for own in grads:
        own.grad = None
    kept = [] if keep_weights else [own for own in model.buffers() if not is_lazy(own)]
    buffers = {own: own.detach().clone() for own in kept}
    devices = {own.device for own in grads if own.device.type == "cuda"}
    with torch.random.fork_rng(devices=[own.index for own in devices]):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers.items():
                    buffer.copy_(before)
            for own, grad in grads.items():
                own.grad = grad
