"""Callbacks for PyTorch Lightning: thin translators of the Trainer's events."""

from gradwatch.callbacks.adaptive_lr import AdaptiveLearningRate
from gradwatch.callbacks.fused_backward import FusedBackward
from gradwatch.callbacks.gradient_flow import GradientFlowMonitor
from gradwatch.callbacks.gradwatch import GradWatch
from gradwatch.callbacks.memory_delta import MemoryDeltaMonitor
from gradwatch.callbacks.non_finite import NonFiniteMonitor
from gradwatch.callbacks.roofline import RooflineMonitor

__all__ = [
    "AdaptiveLearningRate",
    "FusedBackward",
    "GradWatch",
    "GradientFlowMonitor",
    "MemoryDeltaMonitor",
    "NonFiniteMonitor",
    "RooflineMonitor",
]
