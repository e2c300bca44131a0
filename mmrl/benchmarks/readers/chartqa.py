"""ChartQA (arXiv:2203.10244)."""

from __future__ import annotations

from pathlib import Path

from mmrl.benchmarks.records import files_in, inside, json_value, records_of
from mmrl.data.sample import Sample


def read(folder: Path) -> list[Sample]:
    """Read `test_human.json` and `test_augmented.json` beside `png/`, as in the folder `ChartQA Dataset/test`.

        [{"imgname": "41699051005347.png", "query": "How many food item is shown in the bar graph?", "label": "14"}]

    The part, `human` or `augmented`, becomes the tag.
    """
    samples = []
    for path in files_in(folder, "test_*.json"):
        part = path.stem.removeprefix("test_")
        for number, entry in enumerate(records_of(json_value(path), str(path))):
            label = entry.fields.get("label")
            samples.append(
                Sample(
                    id=f"{path.stem}-{number:05d}",
                    prompt=entry.text("query"),
                    images=(inside(folder / "png", entry.text("imgname"), entry.place),),
                    answer=label if isinstance(label, int | float) else entry.text("label"),
                    source=part,
                    metadata={"tags": [part]},
                )
            )
    return samples
