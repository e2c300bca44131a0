"""Write docs/vlms.md from what the tests saw of each vision-language model.

python -m tests.understanding.vlm_record             # runs the checks, writes mmrl/understanding/proven_vlms.yaml
python -m tests.understanding.serving.served_parity  # runs those of served rollouts, and writes them there too
python -m tools.vlms                                 # docs/vlms.md from it
"""

from __future__ import annotations

from pathlib import Path

import transformers

from mmrl.cli.vlm_table import VLM_MEANING
from mmrl.understanding.vlm_support import ProvenVLM, VLMSupport, list_vlms

PAGE = Path(__file__).resolve().parents[1] / "docs" / "vlms.md"
_CHECKS = (
    "A tiny model of random weights is saved, and loaded by `AutoModelForImageTextToText` and `AutoProcessor`. "
    "Answers to unequal prompts with no, one and several images and with a video are rolled out in one batch. Each "
    "log-probability, in the rollout and in the replay, equals that of transformers alone over the prompt alone, "
    "within 1e-4. Greedy answers are those of `generate`. Gradients equal those of plain passes in every part. "
    "Adapters are found, learn, and are saved and loaded. An answer depends on each image and on the video."
)
_COLUMNS = (
    "*LoRA* names the parts with linear layers; a part in brackets has none, and full training alone changes it. "
    "*Causal*: no token of a prompt attends to a later one. *Prompts*: shared, so that answers use one copy of "
    "their prompt, or the reason why not; it depends on a checkpoint's own configuration, and here it is that of "
    "the tiny model. *Boxes* are in pixels, thousandths (`norm_1000`) or fractions (`norm_1`) of the "
    "image; by default where no convention of the makers is known here. `answers.space` sets another."
)
_SERVED = (
    "*Served*: rollouts by `run.servers` are those in process. A server with vLLM's routes runs the tiny model in "
    "another process; after a step of an adapter its greedy answers to prompts with no, one and two images and with a "
    "video are the same tokens, and the mean difference between its log-probabilities of sampled tokens and the "
    "trainer's is at most 1e-5 in float32. Whether vLLM itself has a model of the type, and expands its prompts as "
    "transformers does, is not known from this: the first prompts of a run show it "
    "([served rollouts](served-rollouts.md))."
)
_PARTS = ("language", "vision", "connector")


def vlms_page(found: list[VLMSupport]) -> str:
    """Return the text of docs/vlms.md."""
    classes = len({each.class_name for each in found})
    proven = [each.facts for each in found if each.facts is not None]
    served = sum(not facts.served for facts in proven)
    lines = [
        "# Which vision-language models can be trained",
        "",
        "<!-- Written by `python -m tools.vlms` from mmrl/understanding/proven_vlms.yaml. -->",
        "",
        f"Every model type that transformers {transformers.__version__} maps for `AutoModelForImageTextToText` "
        f"({len(found)} types, {classes} classes), as `mmrl doctor --vlms` prints it for the installed version. A "
        "model type is the `model_type` in a checkpoint's `config.json`.",
        "",
        "| state | model types | classes | what it means |",
        "|-|-|-|-|",
    ]
    for state, meaning in VLM_MEANING.items():
        rows = [each for each in found if each.state == state]
        lines.append(f"| {state} | {len(rows)} | {len({each.class_name for each in rows})} | {meaning} |")
    lines += [
        "",
        "## Proven",
        "",
        _CHECKS,
        "",
        _COLUMNS,
        "",
        f"{_SERVED} {served} of {len(proven)} types are served alike.",
        "",
        "| model type | class | images | video | LoRA | causal | prompts | boxes | served |",
        "|-|-|-|-|-|-|-|-|-|",
        *(_proven_line(each, each.facts) for each in found if each.facts is not None),
        "",
        "## Expected",
        "",
        ", ".join(f"`{each.model_type}` ({each.class_name})" for each in found if each.state == "expected") or "None.",
        "",
        "## Refused",
        "",
        "| model type | class | why |",
        "|-|-|-|",
    ]
    lines += [f"| `{x.model_type}` | {x.class_name} | {x.reason} |" for x in found if x.state == "refused"]
    return "\n".join(lines) + "\n"


def _proven_line(row: VLMSupport, facts: ProvenVLM) -> str:
    parts = [
        name if name in facts.adapters else f"({name})" for name in _PARTS if name in facts.adapters + facts.frozen
    ]
    video = "" if not facts.videos else "yes" if facts.mixes else "without images"
    cells = (
        f"`{row.model_type}`",
        row.class_name,
        facts.images,
        video,
        ", ".join(parts),
        "yes" if facts.causal else "no",
        facts.unshared or "shared",
        facts.space if facts.trained_space else f"{facts.space}, by default",
        facts.served or "yes",
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(vlms_page(list_vlms()), encoding="utf-8")
    print(PAGE)
