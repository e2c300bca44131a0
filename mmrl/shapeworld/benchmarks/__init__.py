"""ShapeWorld's pictures and questions in the files of public benchmarks, so that protocols run without a download.

    write(format, folder, count, seed)     `count` samples that `mmrl.data.benchmarks.read(format, folder)` reads

The same arguments write the same bytes. `KeyError` for a format that is none.
"""

from mmrl.shapeworld.benchmarks.formats import FORMATS, write

__all__ = ["FORMATS", "write"]
