"""ShapeWorld's pictures and questions in the files of public benchmarks, so that protocols run without a download.

`BENCHMARK_DATA` is the package's entry point of the group `mmrl.benchmark_data`. It writes the files of a format, which
`mmrl.benchmarks.readers.read(format, folder)` reads, and states what `overrides.yaml` changes in a protocol.
"""

from mmrl_shapeworld.benchmarks.formats import BENCHMARK_DATA, FORMATS, ShapeWorldBenchmarks

__all__ = ["BENCHMARK_DATA", "FORMATS", "ShapeWorldBenchmarks"]
