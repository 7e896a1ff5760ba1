"""Logs of what each row of a run was, and what tells two runs apart.

A run with ``ExecutionConfig(digest_log=FOLDER)`` leaves a file a rank; `read_log` reads them all,
`compare_logs` finds the first step that differs between two runs and says what differs.
"""

from .compare import Comparison, Finding, Lack, compare_logs
from .differences import Difference, differences
from .reading import RunLog, log_files, read_log
from .rows import DocumentRecord, MediumRecord, RowRecord, record
from .writing import DigestLog

__all__ = [
    "Comparison",
    "Difference",
    "DigestLog",
    "DocumentRecord",
    "Finding",
    "Lack",
    "MediumRecord",
    "RowRecord",
    "RunLog",
    "compare_logs",
    "differences",
    "log_files",
    "read_log",
    "record",
]
