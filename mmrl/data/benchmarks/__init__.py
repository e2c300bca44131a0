"""Readers of benchmarks, in the files as they are published.

    read(format, folder) -> list[Sample]     one reader a format, all in `FORMATS`

    DataError                                the folder lacks a file, or a line of one is not what is due; the message
                                             names the file and the line or entry

A sample of a benchmark has the words of its file as `prompt` (a protocol's `ask` makes a question of them), the right
answer as `answer`, and under `metadata["tags"]` a list of what its benchmark counts it under: GenEval's tag, VBench's
dimensions, MathVista's skills. Paths in files stay inside the folder.
"""

from mmrl.data.benchmarks.formats import FORMATS, read

__all__ = ["FORMATS", "read"]
