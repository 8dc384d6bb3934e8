"""The roofline: what the machine can do, and what bounds each layer."""

from gradwatch.roofline.ceilings import Ceilings
from gradwatch.roofline.profile import KernelRow, Profile
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind

__all__ = ["Ceilings", "KernelRow", "LayerVerdict", "Profile", "VerdictKind"]
