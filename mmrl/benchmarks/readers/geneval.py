"""GenEval's prompts (arXiv:2310.11513)."""

from __future__ import annotations

from pathlib import Path

from mmrl.benchmarks.records import files_in, json_lines
from mmrl.data.sample import Sample


def read(folder: Path) -> list[Sample]:
    """Read `evaluation_metadata.jsonl` of djghosh13/geneval, with one prompt per line.

        {"tag": "position", "prompt": "a photo of a dog right of a bench", "include": [{"class": "bench", "count": 1},
         {"class": "dog", "count": 1, "position": ["right of", 0]}], "exclude": [{"class": "dog", "count": 2}]}

    `include`, `exclude` and `tag` are the references of the reward `geneval`; a clause may have a `color`.
    """
    samples = []
    for path in files_in(folder, "evaluation_metadata.jsonl", "prompts/evaluation_metadata.jsonl"):
        for number, entry in enumerate(json_lines(path)):
            clauses = {key: entry.records(key) for key in ("include", "exclude") if key in entry.fields}
            if not clauses.get("include"):
                raise entry.wrong("include", "a list of {class, count}")
            for clause in (clause for lists in clauses.values() for clause in lists):
                clause.text("class")
                clause.count("count")
            tag = entry.text("tag")
            known = {key: [dict(clause.fields) for clause in clauses[key]] for key in clauses}
            samples.append(
                Sample(
                    id=f"geneval-{number:05d}",
                    prompt=entry.text("prompt"),
                    task="text-to-image",
                    source="geneval",
                    metadata={"tags": [tag], "tag": tag, **known},
                )
            )
    return samples
