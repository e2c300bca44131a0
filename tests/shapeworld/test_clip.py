"""The shipped tiny CLIP: both forms load, agree, and judge unseen pictures as well as the page says."""

from __future__ import annotations

import itertools

import numpy as np
import open_clip
import pytest
import torch
from transformers import AutoProcessor, CLIPModel, CLIPProcessor, CLIPTokenizer

from mmrl_shapeworld import clip_model, models, shipped_models
from mmrl_shapeworld.captions import KINDS, Caption, sample_caption, sample_scene
from mmrl_shapeworld.negatives import ATTRIBUTES, edited, every_caption, hard_negatives, true_captions
from mmrl_shapeworld.scenes import draw
from tools.shapeworld_pretrain import clip as pretrain
from tools.shapeworld_pretrain.clip_evaluate import attribute_accuracy, fault_accuracy, gallery, recall_at_1, unseen
from tools.shapeworld_pretrain.corruptions import FAULTS, break_picture
from tools.shapeworld_pretrain.pictures import to_pictures


@pytest.fixture(scope="module")
def shipped():
    return CLIPModel.from_pretrained(shipped_models.CLIP).eval(), CLIPProcessor.from_pretrained(shipped_models.CLIP)


@pytest.fixture(scope="module")
def score(shipped):
    model, processor = shipped

    @torch.no_grad()
    def cosines(pictures, texts):
        out = model(**processor(text=list(texts), images=list(pictures), return_tensors="pt", padding=True))
        return (out.image_embeds @ out.text_embeds.T).numpy()

    return cosines


def test_transformers_loads_clip_in_float32(shipped):
    model, processor = shipped
    assert type(AutoProcessor.from_pretrained(shipped_models.CLIP)) is type(processor)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert sum(p.numel() for p in model.parameters()) < 1e6


@pytest.mark.parametrize("folder", [shipped_models.CLIP, shipped_models.OPEN_CLIP])
def test_each_weight_format_is_small_and_safetensors_only(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    assert sum(path.stat().st_size for path in files) < 3e6


@pytest.mark.parametrize("pixels", [32, 64, 100])
def test_both_weight_formats_give_equal_embeddings(shipped, pixels):
    model, processor = shipped
    other, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{shipped_models.OPEN_CLIP}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{shipped_models.OPEN_CLIP}")
    captions, scenes = unseen(40, seed=pixels)
    pictures = [draw(scene, pixels) for scene in scenes]
    texts = [str(caption) for caption in captions]
    tensor = torch.stack([preprocess(picture) for picture in pictures])
    ours = processor(text=texts, images=pictures, return_tensors="pt", padding=True)
    # Larger pictures: one library rounds to bytes between scaling down and normalising where the other does not.
    assert (tensor - ours.pixel_values).abs().max() < (1e-6 if pixels == 32 else 0.02)
    with torch.no_grad():
        out = model(input_ids=ours.input_ids, attention_mask=ours.attention_mask, pixel_values=tensor)
        image, text = (
            other.eval().encode_image(tensor, normalize=True),
            other.encode_text(tokenizer(texts), normalize=True),
        )
    assert (out.image_embeds - image).abs().max() < 1e-5
    assert (out.text_embeds - text).abs().max() < 1e-5
    assert abs(model.logit_scale.item() - other.logit_scale.item()) < 1e-6


def test_both_weight_formats_hold_equal_weights():
    assert clip_model.weights_equal()


def test_both_tokenizers_read_every_caption_by_word(shipped):
    texts = [str(caption) for caption in every_caption()]
    ids = shipped[1].tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
    assert torch.equal(ids, open_clip.get_tokenizer(f"local-dir:{shipped_models.OPEN_CLIP}")(texts))
    assert [len(text.split()) + 2 for text in texts] == ((ids != ids[0, -1]).sum(1) + 1).tolist()
    assert len(set(map(tuple, ids.tolist()))) == len(texts)
    pipeline = CLIPTokenizer.from_pretrained(shipped_models.PIPELINE / "tokenizer")
    assert torch.equal(ids, pipeline(texts, padding="max_length", return_tensors="pt").input_ids)


@pytest.mark.integration
def test_captions_wrong_in_one_attribute_are_distinguished(score):
    accuracy = attribute_accuracy(score, *unseen(400, seed=7001))
    assert set(accuracy) == set(ATTRIBUTES)
    assert {name: share for name, share in accuracy.items() if share < 0.9} == {}


@pytest.mark.integration
def test_retrieval_finds_the_caption_among_256(score):
    captions, scenes = gallery(256, seed=7002)
    assert len({str(caption) for caption in captions}) == 256
    assert all(sum(c.holds_for(scene) for c in captions) == 1 for scene in scenes)
    assert recall_at_1(score, captions, scenes) >= 0.9


@pytest.mark.integration
def test_broken_images_score_below_good_ones(score):
    accuracy = fault_accuracy(score, *unseen(100, seed=7003), seed=7004)
    assert set(accuracy) == set(FAULTS)
    assert {name: share for name, share in accuracy.items() if share < 0.9} == {}


@pytest.mark.integration
def test_random_scorer_fails_every_threshold():
    """The control: chance is far below the thresholds of the shipped model."""
    rng = np.random.default_rng(0)

    def blind(pictures, texts):
        return rng.normal(size=(len(pictures), len(texts)))

    captions, scenes = unseen(300, seed=7005)
    assert max(attribute_accuracy(blind, captions, scenes).values()) < 0.7
    assert max(fault_accuracy(blind, captions[:60], scenes[:60], seed=7006).values()) < 0.7
    assert recall_at_1(blind, *gallery(200, seed=7007)) < 0.05


def test_captions_are_listed_once():
    rng = np.random.default_rng(1)
    listed = every_caption()
    assert len(set(listed)) == len(listed) == 732
    assert {sample_caption(rng, KINDS) for _ in range(500)} <= set(listed)


@pytest.mark.integration
def test_true_captions_of_a_scene_are_those_that_hold():
    rng = np.random.default_rng(2)
    none = 0
    for number in range(150):
        scene = sample_scene(sample_caption(rng, KINDS), rng)
        if number % 2:
            scene = edited(scene, rng)
        found = true_captions(scene)
        assert set(found) == {caption for caption in every_caption() if caption.holds_for(scene)}
        assert len(found) == len(set(found))
        none += not found
    assert 0 < none < 75


def test_hard_negatives_change_one_attribute():
    base = Caption.from_dict(
        {
            "clauses": [
                {"count": 1, "colour": "red", "shape": "circle", "size": None},
                {"count": 1, "colour": "blue", "shape": "square", "size": None},
            ],
            "relation": "left of",
        }
    )
    assert str(base) == "a red circle left of a blue square"
    words = {name: sorted(map(str, hard_negatives(base, name))) for name in ("shape", "relation", "count", "size")}
    assert words["shape"] == [
        "a red circle left of a blue circle",
        "a red circle left of a blue triangle",
        "a red square left of a blue square",
        "a red triangle left of a blue square",
    ]
    assert words["relation"] == [
        "a blue square left of a red circle",
        "a red circle above a blue square",
        "a red circle below a blue square",
        "a red circle right of a blue square",
    ]
    assert words["count"] == words["size"] == []
    with pytest.raises(KeyError, match="texture"):
        hard_negatives(base, "texture")


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_broken_images_differ_from_good_ones(fault):
    rng = np.random.default_rng(3)
    _, scenes = unseen(20, seed=11)
    changed = [
        np.any(break_picture(a, b, fault, rng) != np.asarray(draw(a, 32))) for a, b in itertools.pairwise(scenes)
    ]
    assert np.mean(changed) > 0.8


def test_training_labels_match_the_images():
    data = pretrain.draw_triples(12, seed=4)
    assert data.truth[0::3].any(1).all() and not data.truth[2::3].any()
    assert (data.patches[2::3] == -100).all() and (data.counts[2::3] == -100).all()
    assert (data.counts[0::3].sum(1) >= 1).all()
    again = pretrain.draw_triples(12, seed=4)
    assert torch.equal(data.pixels, again.pixels)
    pictures = to_pictures(pretrain.scaled(data.pixels))
    assert np.array_equal(np.asarray(pictures[0]), data.pixels[0].permute(1, 2, 0).numpy())


def test_ranking_loss_is_the_softmax_of_one_true_and_all_false_columns():
    logits = torch.tensor([[2.0, 1.0, -1.0], [0.5, 0.0, 3.0]], dtype=torch.float64)
    truth = torch.tensor([[True, True, False], [False, False, False]])
    first = -torch.log_softmax(torch.tensor([2.0, -1.0], dtype=torch.float64), 0)[0]
    second = -torch.log_softmax(torch.tensor([1.0, -1.0], dtype=torch.float64), 0)[0]
    assert pretrain.ranking_loss(logits, truth).item() == pytest.approx(((first + second) / 2).item())


@pytest.mark.integration
def test_training_lowers_the_loss_and_writes_both_formats(tmp_path):
    """From nothing to both folders with the real code, in seconds."""
    torch.manual_seed(0)
    tokenizer = models.clip_tokenizer(str(caption) for caption in every_caption())
    model = clip_model.build(tokenizer)
    before = model.visual_projection.weight.clone()
    pretrain.fit(model, pretrain.caption_ids(tokenizer), pretrain.draw_triples(16, seed=5), minutes=0.01, batch=4)
    assert not torch.equal(before, model.visual_projection.weight)
    clip_model.save(model, tokenizer, tmp_path / "a", tmp_path / "b")
    assert clip_model.weights_equal(tmp_path / "a", tmp_path / "b")
    loaded = CLIPModel.from_pretrained(tmp_path / "a")
    other, _, _ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'b'}")
    picture = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        ours = loaded.get_image_features(pixel_values=picture).pooler_output
        assert (ours - other.eval().encode_image(picture)).abs().max() < 1e-5
