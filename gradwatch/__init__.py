"""Gradient health for PyTorch: find the layer at fault before the weights take it in."""

from gradwatch.adaptive_lr import AdaptiveLearningRateOptions
from gradwatch.errors import ConfigurationError, GradwatchError, NonFiniteGradientError
from gradwatch.findings import Finding
from gradwatch.fused.options import FusedBackwardOptions
from gradwatch.gradient_flow import GradientFlowOptions
from gradwatch.graph import GraphOptions
from gradwatch.memory import MemoryOptions
from gradwatch.non_finite.policy import NonFiniteOptions
from gradwatch.plain_loop import Watch
from gradwatch.readings import Coverage, FlowReading, StepReading, StepRecord
from gradwatch.roofline import RooflineOptions
from gradwatch.sinks.memory import MemorySink
from gradwatch.sinks.protocol import ProgressSink, Sink, TableSink
from gradwatch.tables import Table
from gradwatch.watch import watch

__all__ = [
    "AdaptiveLearningRateOptions",
    "ConfigurationError",
    "Coverage",
    "Finding",
    "FlowReading",
    "FusedBackwardOptions",
    "GradientFlowOptions",
    "GradwatchError",
    "GraphOptions",
    "MemoryOptions",
    "MemorySink",
    "NonFiniteGradientError",
    "NonFiniteOptions",
    "ProgressSink",
    "RooflineOptions",
    "Sink",
    "StepReading",
    "StepRecord",
    "Table",
    "TableSink",
    "Watch",
    "watch",
]
