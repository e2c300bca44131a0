"""The page and the list of vision-language models are what the tests have seen."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import transformers
from transformers import CONFIG_MAPPING
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config.policy import VLMConfig
from mmrl.errors import ConfigError
from mmrl.understanding.vlm import load_vlm
from mmrl.understanding.vlm_support import REFUSED, list_vlms, proven
from tools.vlms import PAGE, vlms_page


@pytest.fixture(scope="module")
def found():
    return list_vlms()


@pytest.mark.skipif(not transformers.__version__.startswith("5.23"), reason="the page is that of transformers 5.23")
def test_page_equals_the_list(found):
    assert PAGE.read_text(encoding="utf-8") == vlms_page(found), "python -m tools.vlms writes it anew"


def test_every_type_has_a_state_and_refused_ones_a_reason(found):
    names = {each.model_type for each in found}
    assert len(names) == len(found) >= 90
    assert names >= proven().keys() | REFUSED.keys() and not proven().keys() & REFUSED.keys()
    assert all(bool(each.reason) == (each.state == "refused") for each in found)
    assert len({each.class_name for each in found if each.state == "proven"}) >= 55


def test_proven_types_are_those_of_the_matrix():
    tiny = importlib.import_module("tests.understanding.tiny_vlms")
    assert set(tiny.TAKES) == set(proven())


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [("idefics", "cross-attention"), ("florence2", "encoder-decoder"), ("chameleon", "discrete tokens")],
)
def test_refused_types_raise_before_weights_are_read(model_type, reason, tmp_path: Path):
    CONFIG_MAPPING[model_type]().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=rf"^policy\.model: \S+ is a {model_type} model, and .*{reason}"):
        load_vlm(VLMConfig(model=str(tmp_path), device="cpu"))


@pytest.mark.integration
def test_doctor_lists_every_type():
    result = CliRunner().invoke(app, ["doctor", "--vlms"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "qwen3_vl" in result.output and "expected" in result.output and "cross-attention" in result.output
