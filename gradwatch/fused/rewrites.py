"""Rewrite blocks: the chains of a block's own forward, and those that run across its children.

A chain whose parts lie in several modules belongs to the smallest module that holds them all: the
forwards of the children it runs through are written down as part of that module's, with the chains
they hold themselves. Such a child is not called any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from gradwatch.fused.blocks import Traced, trace
from gradwatch.fused.chains import Chain, find_chains
from gradwatch.fused.faithful import unfaithful
from gradwatch.fused.forwards import make_forward
from gradwatch.fused.guards import carries_hook, replaced
from gradwatch.fused.observe import Seen, Visit
from gradwatch.fused.operation import Candidate, Function, Operation
from gradwatch.fused.providers import Offer, Provider
from gradwatch.fused.refusal import Refusal
from gradwatch.fused.splice import splice
from gradwatch.fused.wardrobe import refuse_skipped

__all__ = ["Rewrites", "elements"]

EVERY_CALL = "a hook on the calls of all modules would not fire"
ELSEWHERE = "is called from elsewhere too"
# Their forward is more than Python: buckets, shards, messages.
WRAPPERS = ("torch.nn.parallel", "torch.distributed")


class Rewrites:
    """Finds what can be rewritten, block by block, the inner ones first.

    Args:
        seen: What a step showed.
        providers: Who may offer something.
    """

    def __init__(self, seen: Seen, providers: Sequence[Provider]) -> None:
        """Begin with no child known to be opaque."""
        self._seen, self._providers = seen, providers
        self._whole: set[nn.Module] = set()

    def of(self, name: str, block: nn.Module, visit: Visit) -> Iterator[Candidate | Refusal]:
        """Find the chains of a block.

        Args:
            name: Its name.
            block: A module with children, whose own children were asked before.
            visit: Its first call.

        Yields:
            At most one candidate a provider, and what was refused.
        """
        widest = self._widest(block, visit)
        if isinstance(widest, str):
            self._whole.add(block)
            return
        for provider in self._providers:
            yield from _Search(self._seen, name, block, visit, widest, provider).found()

    def _widest(self, block: nn.Module, visit: Visit) -> Traced | str:
        """Trace with a look into every child that bears it, or else into none."""
        inside = [path for path, each in block.named_modules() if path and self._opens(each)]
        traced = trace(block, visit, inside)
        through = [path for path in inside if _passes(block.get_submodule(path))]
        if isinstance(traced, str) and len(through) < len(inside):
            self._whole.update(block.get_submodule(path) for path in inside if path not in through)
            return trace(block, visit, through)
        return traced

    def _opens(self, module: nn.Module) -> bool:
        if _passes(module):
            return True
        known = module in self._seen.visits and module not in self._whole
        own = replaced(module) or isinstance(module, torch.jit.ScriptModule)
        wraps = type(module).__module__.startswith(WRAPPERS)
        return known and not own and not wraps and next(module.children(), None) is not None


def _passes(module: nn.Module) -> bool:
    """Tell whether a module hands on what it is given."""
    return type(module) is nn.Identity and not replaced(module) and not carries_hook(module)


class _Search:
    """What one provider offers for one block."""

    def __init__(  # noqa: PLR0917 - a place, and what is known of it
        self,
        seen: Seen,
        name: str,
        block: nn.Module,
        visit: Visit,
        widest: Traced,
        provider: Provider,
    ) -> None:
        self._seen, self._name, self._block, self._visit = seen, name, block, visit
        self._widest, self._provider = widest, provider

    def found(self) -> Iterator[Candidate | Refusal]:
        chains = find_chains(self._block, self._widest.graph)
        within: set[str] = set()
        for chain in chains:
            if _owner(chain) or not _frames(chain):
                continue
            offer = self._against_frames(chain) if self._offer(chain) else None
            if isinstance(offer, str):
                yield self._refusal(chain, offer)
            elif offer is not None:
                within |= _frames(chain)
        if within or any(not _frames(each) for each in chains):
            yield from self._rewritten(within)

    def _rewritten(self, within: Collection[str]) -> Iterator[Candidate | Refusal]:
        """Rewrite the block through some of its children, with all that they hold."""
        view = self._view(within)
        if isinstance(view, str):
            return
        taken: list[tuple[Chain, Function]] = []
        for chain in find_chains(self._block, view.graph):
            offer = self._offer(chain)
            if callable(offer):
                taken.append((chain, offer))
            elif isinstance(offer, str) and not _frames(chain):
                # Of the chains in its children they tell themselves.
                yield self._refusal(chain, offer)
        if taken:
            candidate = self._candidate(view, taken)
            reason = self._shared(view) or unfaithful(candidate, self._visit)
            refusal = Refusal(self._name, candidate.kind, self._provider.name, reason)
            yield refusal if reason else candidate

    def _shared(self, view: Traced) -> str:
        """Name a child that is looked into, and called by one that is not."""
        inside = ((p, n) for p, n in view.entered.items() if not self._passes(p))
        return next((f"{p} {ELSEWHERE}" for p, n in inside if not self._called_here(p, n)), "")

    def _passes(self, path: str) -> bool:
        return _passes(self._block.get_submodule(path))

    def _view(self, within: Collection[str]) -> Traced | str:
        passed = {path for path in self._widest.entered if self._passes(path)}
        wanted = passed | set(within)
        if wanted.issuperset(self._widest.entered):
            return self._widest
        return trace(self._block, self._visit, wanted)

    def _candidate(self, view: Traced, taken: Sequence[tuple[Chain, Function]]) -> Candidate:
        made = splice(view.graph, [chain for chain, _ in taken])
        skipped = list(dict.fromkeys(path for chain, _ in taken for path in chain.skipped))
        idle = self._idle(view, _calls(made[0]))
        operations = [
            Operation(
                chain.site.kind, chain.members, chain.stock, fused,
                tuple(path for path in chain.skipped if path in idle),
            )
            for chain, fused in taken
        ]  # fmt: skip
        through = (*operations[0].skipped, *view.entered)
        operations[0] = operations[0]._replace(skipped=through)
        return Candidate(
            layer=self._name,
            provider=self._provider.name,
            module=self._block,
            operations=tuple(operations),
            build=make_forward(self._block, view, made, skipped),
            elements=max(elements(chain.site.inputs) for chain, _ in taken),
        )

    def _idle(self, view: Traced, left: Counter[str]) -> set[str]:
        """Give the modules that nobody calls any more.

        One that is called elsewhere too can be swapped by itself for those calls.
        """
        before = _calls(view.graph)
        return {p for p in before if not left[p] and self._called_here(p, before[p])}

    def _called_here(self, path: str, times: int) -> bool:
        counts = self._seen.counts
        return counts[self._block.get_submodule(path)] == times * counts[self._block]

    def _offer(self, chain: Chain) -> Offer:
        offer = self._provider.propose(chain.site)
        if offer is None or isinstance(offer, str):
            return offer
        if _has_any_global_hook():
            return EVERY_CALL
        reasons = (self._must_be_called(path) for path in chain.skipped)
        return next((reason for reason in reasons if reason), offer)

    def _against_frames(self, chain: Chain) -> Offer:
        """Say why the children a chain runs through must be called, or give what is offered."""
        offer = self._offer(chain)
        if offer is None or isinstance(offer, str):
            return offer
        for path in sorted(_frames(chain)):
            if reason := self._must_be_called(path):
                return reason
            if not self._called_here(path, self._widest.entered[path]):
                return f"{path} {ELSEWHERE}"
        return offer

    def _must_be_called(self, path: str) -> str | None:
        return refuse_skipped(self._block.get_submodule(path), path)

    def _refusal(self, chain: Chain, reason: str) -> Refusal:
        return Refusal(self._name, chain.site.kind, self._provider.name, reason)


def _owner(chain: Chain) -> bool:
    """Tell whether a chain lies in one call of one child as a whole."""
    outermost = {node.meta["within"][:1] for node in chain.nodes}
    return len(outermost) == 1 and outermost != {()}


def _frames(chain: Chain) -> set[str]:
    """Give the paths of the children whose own forward a chain runs through."""
    return {path for node in chain.nodes for path, _ in node.meta["within"]}


def _calls(graph: torch.fx.Graph) -> Counter[str]:
    return Counter(str(node.target) for node in graph.nodes if node.op == "call_module")


def elements(inputs: Sequence[Any]) -> int:
    """Count the elements of the largest input.

    Args:
        inputs: Any inputs.
    """
    return max((each.numel() for each in inputs if isinstance(each, Tensor)), default=0)
