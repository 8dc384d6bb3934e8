"""Find what could be replaced: modules by type, norms by behaviour, chains by data flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from gradwatch.fused.behaviour import norm_form
from gradwatch.fused.loss_behaviour import loss_form
from gradwatch.fused.losses import while_unchanged
from gradwatch.fused.observe import Seen, Visit
from gradwatch.fused.operation import Candidate, Function, Operation
from gradwatch.fused.providers import Offer, Provider, Site
from gradwatch.fused.refusal import Refusal
from gradwatch.fused.rewrites import Rewrites, elements
from gradwatch.fused.wardrobe import refuse_site, refuse_skipped
from gradwatch.layers import clean_name

__all__ = ["Found", "Refusal", "find"]

TWICE = "the step differentiates its gradients (create_graph=True)"


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
    for module, offers in _offers(names, seen, providers).items():
        reason = TWICE if seen.differentiates_twice else compiled.get(module)
        for each in offers:
            _sort(each, reason or refuse_site(module), found, singles)
    found.candidates.extend(singles)
    return found


def _offers(
    names: Mapping[nn.Module, str], seen: Seen, providers: Sequence[Provider]
) -> dict[nn.Module, list[Candidate | Refusal]]:
    """Ask for each module that was called, those first that hold others."""
    rewrites = Rewrites(seen, providers)
    visits = [(each, visit) for each, visit in seen.visits.items() if each in names]
    # Whether a module can look into its children is known of them first.
    offers = {
        module: list(_of_module(names[module], module, visit, providers, seen, rewrites))
        for module, visit in reversed(visits)
    }
    return {module: offers[module] for module, _ in visits}


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


def _of_module(  # noqa: PLR0917 - the module, and what is known of the step
    name: str,
    module: nn.Module,
    visit: Visit,
    providers: Sequence[Provider],
    seen: Seen,
    rewrites: Rewrites,
) -> Iterator[Candidate | Refusal]:
    loss = None if visit.kwargs else loss_form(module, visit.args)
    if loss is not None:
        site = Site("loss", (module,), visit.args, loss=loss)
        yield from _offered(name, site, providers, seen)
    elif next(module.children(), None) is None and module not in {c.module for c in seen.losses}:
        yield from _single(name, module, visit, providers, seen)
    elif _may_hold_chains(module):
        yield from rewrites.of(name, module, visit)


def _single(
    name: str, module: nn.Module, visit: Visit, providers: Sequence[Provider], seen: Seen
) -> Iterator[Candidate | Refusal]:
    inputs = visit.args
    if visit.kwargs or not inputs or not isinstance(inputs[0], Tensor):
        return
    by_hand = not type(module).__module__.startswith("torch.nn.modules.")
    form = norm_form(module, inputs[0]) if by_hand else None
    pattern: Any = "module" if form is None else "norm"
    yield from _offered(name, Site(pattern, (module,), inputs, form), providers, seen)


def _offered(
    name: str, site: Site, providers: Sequence[Provider], seen: Seen
) -> Iterator[Candidate | Refusal]:
    for provider in providers:
        offer = _with_children(site.members[0], provider.propose(site))
        if isinstance(offer, str):
            yield Refusal(name, site.kind, provider.name, offer)
        elif offer is not None:
            yield _single_candidate(name, site, provider.name, offer, seen)


def _with_children(module: nn.Module, offer: Offer) -> Offer:
    """Refuse what would leave out a module that must be called."""
    if offer is None or isinstance(offer, str):
        return offer
    reasons = (refuse_skipped(each, path) for path, each in _below(module))
    return next((reason for reason in reasons if reason is not None), offer)


def _below(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(path, each) for path, each in module.named_modules() if path]


def _single_candidate(
    name: str, site: Site, provider: str, fused: Function, seen: Seen
) -> Candidate:
    module = site.members[0]
    idle = tuple(path for path, each in _below(module) if seen.counts[each] == 1)
    operation = Operation(site.kind, ("",), type(module).forward, fused, idle)
    keep = while_unchanged(module) if site.pattern in ("norm", "loss") else _as_it_is
    return Candidate(
        layer=name,
        provider=provider,
        module=module,
        operations=(operation,),
        build=lambda functions: keep(functions[0]),
        elements=elements(site.inputs),
    )


def _as_it_is(function: Function) -> Function:
    if getattr(function, "__name__", "") == "forward":
        return function

    # A bound method is pickled by its name, which must be one that the stock module has.
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the stock one's
        return function(self, *args, **kwargs)

    return forward


def _may_hold_chains(module: nn.Module) -> bool:
    own = type(module).forward
    # Containers without a forward of their own are never called.
    return own is not nn.Module.forward and not isinstance(module, nn.ModuleList | nn.ModuleDict)
