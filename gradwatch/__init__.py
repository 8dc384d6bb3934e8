"""Gradient health for PyTorch: find the layer at fault before the weights take it in."""

from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
from gradwatch.errors import ConfigurationError, GradwatchError, NonFiniteGradientError
from gradwatch.findings import Finding
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.gradient_flow import GradientFlowOptions
from gradwatch.memory import MemoryOptions
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.readings import Coverage, FlowReading, StepReading, StepRecord
from gradwatch.sinks.memory import MemorySink
from gradwatch.sinks.protocol import Sink
from gradwatch.watch import Watch, watch

__all__ = [
    "AdaptiveLearningRateOptions",
    "ConfigurationError",
    "Coverage",
    "Finding",
    "FlowReading",
    "FusedBackwardOptions",
    "GradientFlowOptions",
    "GradwatchError",
    "MemoryOptions",
    "MemorySink",
    "NonFiniteGradientError",
    "NonFiniteOptions",
    "Sink",
    "StepReading",
    "StepRecord",
    "Watch",
    "watch",
]
