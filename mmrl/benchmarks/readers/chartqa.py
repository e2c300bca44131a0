"""ChartQA (arXiv:2203.10244)."""

from __future__ import annotations

from pathlib import Path

from mmrl.benchmarks.readers.files import entries_of, files_in, inside, json_value
from mmrl.data.sample import Sample


def read_chartqa(folder: Path) -> list[Sample]:
    """`test_human.json` and `test_augmented.json` beside `png/`, as in the folder `ChartQA Dataset/test`.

        [{"imgname": "41699051005347.png", "query": "How many food item is shown in the bar graph?", "label": "14"}]

    Which of the two files a question stands in becomes its tag.
    """
    samples = []
    for path in files_in(folder, "test_*.json"):
        part = path.stem.removeprefix("test_")
        for number, entry in enumerate(entries_of(json_value(path), str(path))):
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
