"""The roofline: what the machine can do, and what bounds each layer."""

from gradwatch.roofline.ceilings import Ceilings, measure_ceilings
from gradwatch.roofline.options import RooflineOptions
from gradwatch.roofline.plain import profile
from gradwatch.roofline.profile import KernelRow, Profile
from gradwatch.roofline.spans import mark_layers
from gradwatch.roofline.verdicts import LayerVerdict, VerdictKind

__all__ = [
    "Ceilings",
    "KernelRow",
    "LayerVerdict",
    "Profile",
    "RooflineOptions",
    "VerdictKind",
    "mark_layers",
    "measure_ceilings",
    "profile",
]
