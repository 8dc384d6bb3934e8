"""Gradient flow: where along the depth the gradient dies, explodes or never arrives."""

from gradwatch.gradient_flow.options import GradientFlowOptions
from gradwatch.gradient_flow.part import GradientFlow

__all__ = ["GradientFlow", "GradientFlowOptions"]
