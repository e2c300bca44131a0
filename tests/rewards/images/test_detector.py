"""Detectors and CLIPs of transformers are loaded and read rightly: tiny random ones, by the library's own words."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from mmrl.rewards import RewardError, RewardInput, Status
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.images.detector import (
    MAX_MASK_SIDE,
    MIN_SCORE,
    Detection,
    TransformersDetector,
    best_phrase,
    box_around,
    corners,
)
from mmrl.rewards.images.geneval import BACKGROUND, COLOURS, TEMPLATES, ClipColours, GenEval, crop
from tests.rewards.images import tiny_models

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
CLASSES = ["dog", "Cat", "sports ball", "computer mouse"]
FOLDED = {"dog": "dog", "cat": "Cat", "sports ball": "sports ball", "mouse": "computer mouse"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    transformers.utils.logging.disable_progress_bar()
    made = {}

    def folder(name):
        if name not in made:
            place = tmp_path_factory.mktemp(name)
            torch.manual_seed(2)
            made[name] = str(getattr(tiny_models, name)(place))
        return made[name]

    yield folder
    transformers.utils.logging.enable_progress_bar()


def rows(detections):
    return sorted((d.label, round(d.score, 4), tuple(round(side, 2) for side in d.box)) for d in detections)


@pytest.mark.parametrize("name, loader", [
    ("detr", transformers.AutoModelForObjectDetection), ("yolos", transformers.AutoModelForObjectDetection)
])  # fmt: skip
def test_fixed_class_detectors_equal_transformers(folders, name, loader):
    detector = TransformersDetector(folders(name), device="cpu")
    assert detector.kind == "boxes"
    processor, model = (
        transformers.AutoImageProcessor.from_pretrained(folders(name)),
        loader.from_pretrained(folders(name)),
    )
    with torch.no_grad():
        outputs = model.eval()(**processor(images=PICTURE, return_tensors="pt"))
    [expected] = processor.post_process_object_detection(outputs, MIN_SCORE, [(50, 70)])
    names = [model.config.id2label[number] for number in expected["labels"].tolist()]
    wanted = [
        Detection(FOLDED[label], score, tuple(box))
        for label, score, box in zip(names, expected["scores"].tolist(), expected["boxes"].tolist(), strict=True)
        if label != "N/A"
    ]
    assert wanted
    assert rows(detector.detect(PICTURE, CLASSES)) == rows(wanted)
    assert {thing.label for thing in detector.detect(PICTURE, ["dog"])} <= {"dog"}
    assert detector.detect(PICTURE, []) == []


def test_unknown_classes_are_scorer_failures(folders):
    detector = TransformersDetector(folders("yolos"), device="cpu")
    with pytest.raises(ScoringFailed, match="does not know unicorn; it knows cat, dog, mouse, n/a, sports ball"):
        detector.detect(PICTURE, ["dog", "unicorn"])
    item = RewardInput("a", 0, "", image=PICTURE, references={"include": [{"class": "unicorn", "count": 1}]})
    output = GenEval(detector, None).score([item])
    assert output.status["geneval"] == [Status.ERROR]
    assert output.failures[0]["geneval"].kind == "unknown_class"


@pytest.mark.integration
def test_masks_come_with_their_bounding_boxes(folders):
    detector = TransformersDetector(folders("mask2former"), device="cpu")
    assert detector.kind == "masks"
    found = detector.detect(PICTURE, CLASSES)
    assert found
    for thing in found:
        assert thing.mask is not None
        assert thing.mask.shape == (50, 70)
        assert thing.box == box_around(thing.mask)
        x1, y1, x2, y2 = (int(side) for side in thing.box)
        assert thing.mask.sum() == thing.mask[y1:y2, x1:x2].sum()
        assert thing.mask[y1].any() and thing.mask[y2 - 1].any()
        assert thing.mask[:, x1].any() and thing.mask[:, x2 - 1].any()
    assert box_around(np.zeros((4, 4), bool)) == (0, 0, 0, 0)


@pytest.mark.integration
def test_masks_of_large_images_are_downscaled_with_boxes_in_pixels(folders):
    """At 5792 x 5792 pixels, masks of full size took 12 GiB."""
    detector = TransformersDetector(folders("mask2former"), device="cpu")
    large = PICTURE.resize((2800, 2000), Image.Resampling.NEAREST)
    small = detector.detect(large.resize((700, 500), Image.Resampling.NEAREST), CLASSES)
    found = detector.detect(large, CLASSES)
    assert found and len(found) == len(small)
    for thing, expected in zip(found, small, strict=True):
        assert max(thing.mask.shape) <= MAX_MASK_SIDE
        assert thing.label == expected.label
        np.testing.assert_allclose(np.array(thing.box) / 4, expected.box, atol=6)
        assert crop(large, thing).width == pytest.approx(thing.box[2] - thing.box[0], abs=1)


@pytest.mark.integration
def test_zero_shot_detectors_take_any_words(folders):
    detector = TransformersDetector(folders("owlv2"), device="cpu")
    assert detector.kind == "queries"
    words = ["red dog", "cat", "ball"]
    found = detector.detect(PICTURE, words)
    processor = transformers.AutoProcessor.from_pretrained(folders("owlv2"))
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(folders("owlv2")).eval()
    with torch.no_grad():
        outputs = model(**processor(images=PICTURE, text=[words], return_tensors="pt"))
    scores, best = outputs.logits[0].sigmoid().max(1)
    expected = [(words[b], round(s, 4)) for s, b in zip(scores.tolist(), best.tolist(), strict=True) if s > MIN_SCORE]
    assert len({label for label, _ in expected}) > 1
    assert sorted((d.label, round(d.score, 4)) for d in found) == sorted(expected)


@pytest.mark.integration
def test_grounding_dino_assigns_each_box_to_its_best_phrase(folders):
    detector = TransformersDetector(folders("grounding_dino"), device="cpu")
    assert detector.kind == "phrases"
    words = ["dog", "red sports ball", "cat"]
    found = detector.detect(PICTURE, words)
    processor = transformers.AutoProcessor.from_pretrained(folders("grounding_dino"))
    model = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(folders("grounding_dino")).eval()
    inputs = processor(images=PICTURE, text=[words], return_tensors="pt")
    with torch.no_grad():
        outputs = model(**inputs)
    tokens = processor.tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    assert tokens == ["[CLS]", "dog", ".", "red", "sports", "ball", ".", "cat", ".", "[SEP]"]
    scores = outputs.logits[0].sigmoid().numpy()
    each = np.stack([scores[:, 1], scores[:, 3:6].max(1), scores[:, 7]], 1)
    [whole] = processor.post_process_grounded_object_detection(outputs, threshold=0.0, target_sizes=[(50, 70)])
    expected = [
        (words[row.argmax()], round(float(row.max()), 4), tuple(round(side, 2) for side in box))
        for row, box in zip(each, whole["boxes"].tolist(), strict=True)
        if row.max() > MIN_SCORE
    ]
    assert len({label for label, *_ in expected}) > 1
    assert rows(found) == sorted(expected)


def test_phrases_are_separated_at_full_stops():
    logits = torch.tensor([[0.0, 2.0, 9.0, -1.0, 1.0, 9.0, -torch.inf], [0.0, -3.0, 9.0, 3.0, 0.0, 9.0, -torch.inf]])
    scores, best = best_phrase(logits, torch.tensor([101, 5, 12, 6, 7, 12]), 12, 2)
    assert best.tolist() == [0, 1]
    torch.testing.assert_close(scores, torch.tensor([2.0, 3.0]).sigmoid())
    with pytest.raises(ScoringFailed, match="2 classes where 3 were requested"):
        best_phrase(logits, torch.tensor([101, 5, 12, 6, 7, 12]), 12, 3)
    assert corners(torch.tensor([[0.5, 0.5, 0.2, 0.4]]), (50, 100)).tolist() == [pytest.approx([40, 15, 60, 35])]


def test_classes_with_a_full_stop_are_rejected(folders):
    with pytest.raises(ScoringFailed, match=r"reads dog\. cat as several classes"):
        TransformersDetector(folders("grounding_dino"), device="cpu").detect(PICTURE, ["dog. cat", "ball"])


@pytest.mark.integration
def test_large_images_are_resized_and_boxes_stay_in_their_pixels(folders):
    detector = TransformersDetector(folders("yolos"), device="cpu")
    small, large = (
        detector.detect(PICTURE.resize(size, Image.Resampling.NEAREST), CLASSES)
        for size in ((2100, 1500), (4200, 3000))
    )
    assert [round(d.box[0] / 2100, 2) for d in small] == [round(d.box[0] / 4200, 2) for d in large]


@pytest.mark.integration
def test_geneval_builds_from_model_names(folders):
    clip = folders("clip")
    include = [{"class": "dog", "count": 1, "color": "red"}]
    items = [RewardInput("a", 0, "", image=PICTURE, references={"include": include})]
    for name in ("detr", "mask2former", "owlv2", "grounding_dino"):
        reward = GenEval(folders(name), clip, threshold=0.06, device="cpu")
        output = reward.score(items)
        assert output.status["geneval"] == [Status.OK], output.detail
        assert len(reward.spec.weights) == 2
        assert all(len(file.sha256) == 64 for file in reward.spec.weights)
    assert GenEval(folders("detr"), clip, device="cpu").fingerprint() != reward.fingerprint()


@pytest.mark.parametrize("name", ["clip", "nowhere"])
def test_models_that_are_no_detector_are_rejected(folders, tmp_path, name):
    place = folders("clip") if name == "clip" else str(tmp_path)
    with pytest.raises(RewardError, match="not an object detector: use one" if name == "clip" else "cannot be loaded"):
        TransformersDetector(place, device="cpu")


def test_colour_is_the_one_with_the_nearest_sentences(folders):
    clip = folders("clip")
    things = [
        Detection("dog", 1.0, box)
        for box in ((0.0, 0.0, 20.0, 30.0), (10.4, 5.6, 60.0, 45.0), (-9.0, -9.0, 99.0, 99.0))
    ]
    model, processor = (
        transformers.CLIPModel.from_pretrained(clip).eval(),
        transformers.CLIPProcessor.from_pretrained(clip),
    )
    with torch.no_grad():
        seen = [PICTURE.crop(box) for box in ((0, 0, 20, 30), (10, 6, 60, 45), (0, 0, 70, 50))]
        expected = []
        crops = model.get_image_features(**processor(images=seen, return_tensors="pt")).pooler_output
        for c in COLOURS:
            sentences = [template.format(colour=c, thing="dog") for template in TEMPLATES]
            texts = model.get_text_features(
                **processor(text=sentences, padding=True, return_tensors="pt")
            ).pooler_output
            expected.append((texts / texts.norm(dim=1, keepdim=True)).mean(0))
        named = [
            COLOURS[i] for i in torch.cosine_similarity(crops[:, None], torch.stack(expected)[None], dim=-1).argmax(1)
        ]
    assert ClipColours(clip, device="cpu").colours(PICTURE, things) == named
    assert ClipColours(clip, device="cpu").colours(PICTURE, []) == []


def test_crops_are_masked_with_grey_and_never_empty():
    mask = np.zeros((50, 70), bool)
    mask[10:20, 30:40] = True
    seen = np.asarray(crop(PICTURE, Detection("dog", 1.0, (28.0, 8.0, 42.0, 22.0), mask)))
    assert seen.shape == (14, 14, 3)
    assert np.array_equal(seen[2:12, 2:12], np.asarray(PICTURE)[10:20, 30:40])
    assert np.all(seen[:2] == BACKGROUND)
    coarse = mask.reshape(25, 2, 35, 2).all((1, 3))
    assert np.array_equal(np.asarray(crop(PICTURE, Detection("dog", 1.0, (28.0, 8.0, 42.0, 22.0), coarse))), seen)
    for box in ((5.0, 5.0, 5.0, 5.0), (200.0, 200.0, 300.0, 300.0), (-50.0, -50.0, -20.0, -20.0), (9.0, 9.0, 3.0, 3.0)):
        assert min(crop(PICTURE, Detection("dog", 1.0, box)).size) >= 1
