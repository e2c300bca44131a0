"""ShapeWorld's pictures and questions in the files of public benchmarks, so that protocols run without a download.

    write(format, folder, count, seed)     `count` samples that `mmrl.benchmarks.readers.read(format, folder)` reads

The same arguments write the same bytes. `KeyError` for a format that is none.
"""

from mmrl_shapeworld.benchmarks.formats import FORMATS, write

__all__ = ["FORMATS", "write"]
