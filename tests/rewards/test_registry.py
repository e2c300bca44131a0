"""Rewards are found by name, in other packages and in files; a wrong name raises with the nearest one."""

import io
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mmrl.rewards import Reward, RewardError, RewardInput, RewardSuite, available, describe, load, register
from mmrl.rewards.core import registry


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Remove the rewards that a test registers."""
    monkeypatch.setattr(registry.REWARDS, "registered", {})


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Installs a small distribution that offers rewards as entry points."""

    def install(module: str, source: str, *points: str):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[mmrl.rewards]\n" + "\n".join(points))
        monkeypatch.syspath_prepend(tmp_path)
        return tmp_path

    yield install
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


CLASS = '''
from mmrl.rewards import Reward

class Sharpness(Reward):
    """How sharp."""
    name, needs, range = "sharpness", ("image",), (0.0, 1.0)
    def __init__(self, radius: float = 1.0):
        self.radius = radius
    def score_one(self, item):
        return self.radius / 10
'''


def ask(image=None, text=None, **references):
    return RewardInput(id="a", group=0, prompt="a red circle", image=image, text=text, references=references)


@pytest.mark.integration
def test_importing_rewards_imports_no_torch():
    code = "import mmrl.rewards, mmrl.data, sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_compressibility_is_the_negative_jpeg_size_in_kilobytes():
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    images = [Image.fromarray(noise), Image.new("RGBA", (64, 64), "red")]
    values = load("compressibility", quality=50).score([ask(image=i) for i in images]).values["compressibility"]
    buffer = io.BytesIO()
    images[0].save(buffer, "JPEG", quality=50)
    assert values[0] == pytest.approx(-len(buffer.getvalue()) / 1000)
    assert values[0] < values[1] < 0


def test_unknown_names_raise_with_the_nearest():
    with pytest.raises(RewardError, match=r"there is no reward 'compresibility': did you mean compressibility\?"):
        load("compresibility")
    with pytest.raises(RewardError, match=r"'zzz': known are .*compressibility"):
        load("zzz")


def test_wrong_arguments_raise_with_the_signature():
    with pytest.raises(RewardError, match=r"compressibility\(quality.* = 95\).*'qualty'"):
        load("compressibility", qualty=3)
    with pytest.raises(RewardError, match="quality is 0; JPEG takes 1 to 95"):
        load("compressibility", quality=0)


def test_entry_points_are_imported_on_load_only(package):
    package("sharp_rewards", CLASS, "sharpness = sharp_rewards:Sharpness")
    assert "sharpness" in available() and available() == sorted(available())
    assert "sharp_rewards" not in sys.modules
    reward = load("sharpness", radius=5.0)
    assert reward.score([ask(image=Image.new("L", (2, 2)))]).values["sharpness"][0] == pytest.approx(0.5)
    assert describe("sharpness").splitlines() == [
        "sharpness: How sharp.",
        "",
        "range      0 to 1, higher is better",
        "scope      sample",
        "needs      image",
        "gradients  no",
        "source     not stated",
        "licence    not stated",
        "arguments  radius: float = 1.0",
    ]


def test_a_reward_without_arguments_takes_none():
    with pytest.raises(RewardError, match=r"count_exact\(\): got an unexpected keyword argument 'relative'"):
        load("count_exact", relative=0.1)
    with pytest.raises(TypeError, match="CountExact takes no arguments, and got relative"):
        registry.reward_class("count_exact")(relative=0.1)
    assert describe("count_exact").endswith("arguments  none")


def test_a_function_is_described_by_its_own_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text('def plain(text): return 1.0\n\ndef long(text):\n    """Long texts."""\n    return 1.0\n')
    assert describe(f"{file}:plain").startswith(f"{file}:plain: no description\n")
    assert describe(f"{file}:long").startswith(f"{file}:long: Long texts.\n")
    assert load(f"{file}:plain").spec.summary == "no description"
    assert "licence    not stated\n" in describe(f"{file}:plain") and "licence    MIT\n" in describe("pickscore")


def test_a_class_is_described_by_its_own_text(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from mmrl.rewards import Reward\n\nclass Plain(Reward):\n    name, range = 'plain', (0.0, 1.0)\n"
        "    def score_one(self, item):\n        return 1.0\n\n"
        "class More(Plain):\n    'More.'\n\nclass Most(More): pass\n"
    )
    assert describe(f"{file}:Plain").startswith(f"{file}:Plain: no description\n")
    assert describe(f"{file}:Most").startswith(f"{file}:Most: More.\n")


@pytest.mark.parametrize(
    "batch, wrong",
    [([Image.new("RGB", (2, 2))], "Image"), ([{"id": "0"}], "dict"), (ask(text="a"), "RewardInput"), ("ab", "str")],
)
def test_a_batch_of_something_else_is_refused(batch, wrong):
    with pytest.raises(RewardError, match=rf"a batch is a list of RewardInput, .*, not of {wrong}$"):
        load("compressibility").score(batch)


def test_load_takes_names_alone():
    with pytest.raises(RewardError, match=r"load takes the name of a reward, not <function .*: `register`"):
        load(lambda image: 1.0)


def test_an_error_of_a_users_file_names_its_line(tmp_path):
    file = tmp_path / "raising.py"
    file.write_text(
        'def look(references):\n    return references["foo"]\n\ndef score(text, references): return look(references)\n'
    )
    assert load(f"{file}:score").score([ask(text="a")]).detail[0]["score"] == "KeyError: 'foo' (raising.py, line 2)"


def test_a_map_without_the_rewards_own_name_is_named_as_such(tmp_path):
    file = tmp_path / "maps.py"
    file.write_text('def score(text): return {"total": 1.0, "x": 2.0}\n')
    detail = load(f"{file}:score").score([ask(text="a")]).detail[0]["score"]
    assert detail == "score returned the keys total, x, without its own value 'score'"


def test_failed_entry_point_imports_raise_with_the_reason(package):
    package("broken_rewards", "import a_missing_module", "broken = broken_rewards:Thing")
    with pytest.raises(RewardError, match=r"'broken' cannot be imported from broken_rewards:Thing.*a_missing_module"):
        load("broken")


def test_entry_points_must_have_the_name_of_their_reward(package):
    package("sharp_rewards", CLASS, "crispness = sharp_rewards:Sharpness")
    with pytest.raises(RewardError, match="'crispness' is sharp_rewards:Sharpness, which calls itself 'sharpness'"):
        load("crispness")


def test_rewards_offered_by_two_packages_raise(package):
    package("sharp_rewards", CLASS, "sharpness = sharp_rewards:Sharpness")
    package("sharper_rewards", CLASS, "sharpness = sharper_rewards:Sharpness")
    with pytest.raises(RewardError, match="several packages offer the reward 'sharpness'"):
        load("sharpness")


def test_register_accepts_classes_and_functions_once():
    @register
    class Half(Reward):
        name, needs, range = "half", (), (0.0, 1.0)

        def score_one(self, item):
            return 0.5

    @register
    def redness(image, prompt, references, scale=1.0):
        """Redness."""
        return scale * image.getpixel((0, 0))[0] / 255 + references["bonus"]

    assert {"half", "redness"} <= set(available())
    assert load("half").score([ask()]).values["half"][0] == 0.5
    red = ask(image=Image.new("RGB", (1, 1), "red"), bonus=2)
    assert load("redness", scale=0.5).score([red]).values["redness"][0] == 2.5
    assert load("redness").score([ask()]).detail[0]["redness"] == "redness needs image"
    register(Half)  # a notebook cell that is run again
    with pytest.raises(RewardError, match="already a reward 'half'"):

        @register
        class Other(Half):
            pass

    with pytest.raises(RewardError, match=r"already a reward 'compressibility': mmrl.rewards.images.image_quality"):

        @register
        def compressibility(image):
            return 0.0


def test_files_offer_functions_and_classes(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        CLASS + "def longer(item, than: int): return float(len(item.text) > than)\n"
        "def shout(text): return {'shout': text.isupper(), 'letters': len(text)}\n"
        "def nothing(x=1): return x\n"
        "def many(*images): return 0\n"
        "LEVEL = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load("mine.py:longer", than=2).score([ask(text="abc"), ask(text="a")]).values["longer"].tolist() == [1, 0]
    assert load("mine.py:shout").score([ask(text="AB")]).values["letters"].tolist() == [2]
    assert load(f"{tmp_path}/mine.py:Sharpness", radius=1).name == "sharpness"
    for wrong, message in {
        "mine.py:longer": r"mine.py:longer\(\*, than: 'int'\)|missing a required .*argument: 'than'",
        "mine.py:shuot": r"mine.py has no 'shuot'; did you mean shout\?",
        "mine.py:nothing": r"nothing\(x\) takes nothing to score",
        "mine.py:many": "many: parameters are filled by name, but images cannot be",
        "mine.py:LEVEL": "LEVEL is a int; a reward is a Reward class or a function",
        "mine.py": "name the reward in the file too, as in mine.py:",
        "yours.py:shout": re.escape(f"yours.py: no such file; paths are relative to {tmp_path}"),
    }.items():
        with pytest.raises(RewardError, match=message):
            load(wrong)
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(RewardError, match=r"bad.py cannot be imported: ZeroDivisionError"):
        load("bad.py:shout")


STRICT = """
from mmrl.rewards import InvalidAnswer

def half(text):
    raise InvalidAnswer(text)

half.range = (-1.0, 1.0)
"""


def test_functions_may_declare_their_range(tmp_path):
    (tmp_path / "mine.py").write_text(STRICT)
    output = load(f"{tmp_path}/mine.py:half").score([ask(text="x")])
    assert output.values["half"].tolist() == [-1.0] and output.status["half"] == ["invalid"]


def test_every_built_in_reward_has_a_card():
    for name in registry.BUILT_IN:
        assert re.search(
            r"\nrange .*\nscope .*\nneeds .*\ngradients .*\nsource .*\nlicence .*\narguments ", describe(name)
        )


@pytest.mark.parametrize(
    ("body", "lacking"),
    [
        ("range = (0.0, 1.0)\n    def score_one(self, item): return 1.0", r'lacks a name, as in name = "mine"'),
        (
            'name = "mine"\n    def score_one(self, item): return 1.0',
            r"lacks its lowest and highest value, as in range =",
        ),
        ('name, range = "mine", (0.0, 1.0)\n    def score_batch(self, batch): return []', "lacks the method score_one"),
    ],
)
def test_a_class_that_lacks_what_a_reward_has_is_refused_by_what_it_lacks(tmp_path, body, lacking):
    (tmp_path / "mine.py").write_text(f"from mmrl.rewards import Reward\n\nclass Mine(Reward):\n    {body}\n")
    with pytest.raises(RewardError, match=rf"mine\.py:Mine: the class Mine {lacking}"):
        load(f"{tmp_path}/mine.py:Mine")


def test_two_rewards_of_one_name_say_what_to_do():
    with pytest.raises(RewardError, match=r"two rewards called length, .*: rename a function, or derive a class"):
        RewardSuite([(load("length", limit=10), 1.0), (load("length", limit=20), 1.0)])
