"""Where findings and records go: a sink is handed both and thinks about neither."""

from gradwatch.sinks.console import ConsoleSink
from gradwatch.sinks.loggers import LoggerSink
from gradwatch.sinks.memory import MemorySink
from gradwatch.sinks.pictures import PictureSink
from gradwatch.sinks.protocol import ProgressSink, ResumableSink, Sink, TableSink
from gradwatch.sinks.record import RunRecordSink
from gradwatch.sinks.record_reader import RunRecord, read
from gradwatch.sinks.wandb import WandbSink, wandb_run

__all__ = [
    "ConsoleSink",
    "LoggerSink",
    "MemorySink",
    "PictureSink",
    "ProgressSink",
    "ResumableSink",
    "RunRecord",
    "RunRecordSink",
    "Sink",
    "TableSink",
    "WandbSink",
    "read",
    "wandb_run",
]
