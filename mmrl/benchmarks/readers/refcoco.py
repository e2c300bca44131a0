"""RefCOCO, RefCOCO+ and RefCOCOg as JSON Lines."""

from __future__ import annotations

from pathlib import Path

from mmrl.benchmarks.records import files_in, inside, json_lines
from mmrl.data.sample import Sample


def read(folder: Path) -> list[Sample]:
    """Read all `*.jsonl` of the folder, in the form published by Qwen-VL (refcoco_val.jsonl, refcoco_testA.jsonl).

        {"image": "data/coco/train2014/COCO_train2014_000000581857.jpg", "sent": "the woman in front",
         "bbox": [103.5, 300.0, 238.2, 476.4], "height": 640, "width": 480}

    A line is one sentence. `bbox` is x1, y1, x2, y2 in pixels; the path of the image is relative to the folder.
    """
    samples = []
    for path in files_in(folder, "*.jsonl"):
        for number, entry in enumerate(json_lines(path), start=1):
            size = [entry.count("width"), entry.count("height")]
            x1, y1, x2, y2 = box = entry.numbers("bbox", 4)
            if not (x1 < x2 <= size[0] * 1.01 and y1 < y2 <= size[1] * 1.01 and min(x1, y1) >= -0.01 * max(size)):
                raise entry.wrong("bbox", f"[x1, y1, x2, y2] in pixels of a picture of {size[0]} x {size[1]}")
            samples.append(
                Sample(
                    id=f"{path.stem}-{number:05d}",
                    prompt=entry.text("sent"),
                    images=(inside(folder, entry.text("image"), entry.place),),
                    answer=box,
                    source=path.stem,
                    metadata={"tags": [path.stem], "space": "pixel", "size": size},
                )
            )
    return samples
