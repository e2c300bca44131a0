"""The kind of an argument follows from its name."""

import pytest

from mmrl.data.media.sample_media import map_media, media_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("image", "image"),
        ("reference_images", "image"),
        ("image_reference", "image"),
        ("mask_image", "mask"),
        ("mask", "mask"),
        ("control_mask", "mask"),
        ("mask_video", "video"),
        ("pose_video", "video"),
        ("conditioning_frames", "video"),
        ("strength", None),
        ("num_frames", None),
        ("num_images_per_prompt", None),
        ("prompt_2", None),
    ],
)
def test_media_kind_follows_the_argument_name(name, kind):
    assert media_kind(name) == kind


def test_map_media_changes_paths_only():
    fields = {"image": "a", "reference_images": ["b", "c"], "num_frames": 9, "prompt_2": "d", "mask": None}
    changed = map_media(fields, lambda kind, path: (kind, path))
    assert changed == fields | {"image": ("image", "a"), "reference_images": [("image", "b"), ("image", "c")]}
