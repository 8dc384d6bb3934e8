"""Find what could be replaced: modules by type, norms by behaviour, chains by data flow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from gradwatch.fused.behaviour import norm_form
from gradwatch.fused.blocks import trace
from gradwatch.fused.chains import Chain, find_chains
from gradwatch.fused.forwards import make_forward
from gradwatch.fused.guards import carries_hook
from gradwatch.fused.observe import Seen, Visit
from gradwatch.fused.operation import Candidate, Function, Operation
from gradwatch.fused.providers import Offer, Provider, Site
from gradwatch.fused.splice import splice
from gradwatch.fused.wardrobe import refuse_site
from gradwatch.layers import clean_name

__all__ = ["Found", "Refusal", "find"]

TWICE = "the step differentiates its gradients (create_graph=True)"


class Refusal(NamedTuple):
    """A place where something could stand, and why it does not.

    Attributes:
        layer: Name of the module.
        kind: What stands there.
        provider: Who would have offered something; empty where none was asked.
        reason: Why not.
    """

    layer: str
    kind: str
    provider: str
    reason: str


class Found(NamedTuple):
    """What a search came to.

    Attributes:
        candidates: What can be tried; chains before single modules.
        refusals: What was refused, with the reason.
    """

    candidates: list[Candidate]
    refusals: list[Refusal]


def find(model: nn.Module, seen: Seen, providers: Sequence[Provider]) -> Found:
    """Search a model that was watched for one step.

    Args:
        model: The model.
        seen: What the step showed.
        providers: Who may offer something.

    Returns:
        Candidates and refusals.
    """
    found = Found([], [])
    names = {module: clean_name(name) for name, module in model.named_modules()}
    compiled = _inside_compiled(model)
    singles: list[Candidate] = []
    for module, visit in seen.visits.items():
        if module not in names:
            continue
        offers = list(_of_module(names[module], module, visit, providers, seen))
        reason = TWICE if seen.differentiates_twice else compiled.get(module)
        for each in offers:
            _sort(each, reason or refuse_site(module), found, singles)
    found.candidates.extend(singles)
    return found


def _sort(
    each: Candidate | Refusal, reason: str | None, found: Found, singles: list[Candidate]
) -> None:
    if isinstance(each, Refusal):
        found.refusals.append(each)
    elif reason is not None:
        found.refusals.append(Refusal(each.layer, each.kind, each.provider, reason))
    elif any(own.members != ("",) for own in each.operations):
        found.candidates.append(each)
    else:
        singles.append(each)


def _inside_compiled(model: nn.Module) -> dict[nn.Module, str]:
    reason = "it runs inside a compiled module: torch.compile fuses it on its own"
    outer = (
        each
        for each in model.modules()
        if each._compiled_call_impl is not None or "_orig_mod" in each._modules
    )
    return {inner: reason for each in outer for inner in each.modules()}


def _of_module(
    name: str, module: nn.Module, visit: Visit, providers: Sequence[Provider], seen: Seen
) -> Iterator[Candidate | Refusal]:
    if next(module.children(), None) is None:
        yield from _single(name, module, visit, providers)
    elif _may_hold_chains(module):
        yield from _chained(name, module, visit, providers, seen)


def _single(
    name: str, module: nn.Module, visit: Visit, providers: Sequence[Provider]
) -> Iterator[Candidate | Refusal]:
    inputs = visit.args
    if visit.kwargs or not inputs or not isinstance(inputs[0], Tensor):
        return
    by_hand = not type(module).__module__.startswith("torch.nn.modules.")
    form = norm_form(module, inputs[0]) if by_hand else None
    pattern: Any = "module" if form is None else "norm"
    site = Site(pattern, (module,), inputs, form)
    for provider in providers:
        offer = provider.propose(site)
        if isinstance(offer, str):
            yield Refusal(name, site.kind, provider.name, offer)
        elif offer is not None:
            yield _single_candidate(name, site, provider.name, offer)


def _single_candidate(name: str, site: Site, provider: str, fused: Function) -> Candidate | Refusal:
    if getattr(fused, "__name__", "") != "forward":
        reason = "its function is not named 'forward': the module could not be loaded again"
        return Refusal(name, site.kind, provider, reason)
    module = site.members[0]
    operation = Operation(site.kind, ("",), type(module).forward, fused)
    return Candidate(
        layer=name,
        provider=provider,
        module=module,
        operations=(operation,),
        build=lambda functions: functions[0],
        elements=_elements(site.inputs),
    )


def _elements(inputs: Sequence[Any]) -> int:
    return max((each.numel() for each in inputs if isinstance(each, Tensor)), default=0)


def _may_hold_chains(module: nn.Module) -> bool:
    own = type(module).forward
    # Containers without a forward of their own are never called.
    return own is not nn.Module.forward and not isinstance(module, nn.ModuleList | nn.ModuleDict)


def _chained(
    name: str, block: nn.Module, visit: Visit, providers: Sequence[Provider], seen: Seen
) -> Iterator[Candidate | Refusal]:
    traced = trace(block, visit)
    if isinstance(traced, str):
        return
    chains = find_chains(block, traced.graph)
    for provider in providers if chains else ():
        taken: list[tuple[Chain, Function]] = []
        for chain in chains:
            offer = _offer(block, chain, provider)
            if isinstance(offer, str):
                yield Refusal(name, chain.site.kind, provider.name, offer)
            elif offer is not None:
                taken.append((chain, offer))
        if taken:
            made = splice(traced.graph, [chain for chain, _ in taken])
            skipped = [path for chain, _ in taken for path in chain.skipped]
            yield Candidate(
                layer=name,
                provider=provider.name,
                module=block,
                operations=tuple(_operation(block, *each, seen) for each in taken),
                build=make_forward(block, traced, made, skipped),
                elements=max(_elements(chain.site.inputs) for chain, _ in taken),
            )


def _offer(block: nn.Module, chain: Chain, provider: Provider) -> Offer:
    offer = provider.propose(chain.site)
    if offer is None or isinstance(offer, str):
        return offer
    for path in chain.skipped:
        member = block.get_submodule(path)
        if carries_hook(member):
            return f"{path} carries a hook, which would not fire"
        reason = refuse_site(member)
        if reason is not None:
            return f"{path}: {reason}"
    return offer


def _operation(block: nn.Module, chain: Chain, fused: Function, seen: Seen) -> Operation:
    # One that is called elsewhere too can be swapped by itself for those calls.
    idle = tuple(p for p in chain.skipped if seen.counts[block.get_submodule(p)] == 1)
    return Operation(chain.site.kind, chain.members, chain.stock, fused, idle)
