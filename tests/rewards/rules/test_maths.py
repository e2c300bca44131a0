"""Mathematical answers, against exact fractions and by hand."""

import math
import random
from fractions import Fraction

import pytest

from mmrl.rewards import RewardError, Status
from mmrl.rewards.rules.maths import Maths, extract_formula

from .single_answer import ask

EQUAL = [
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("\\boxed{\\frac12}", 0.5),
    ("So it is $\\frac{1}{2}$.", "1/2"),
    ("<answer>\\boxed{3}</answer>", 3),
    ("<answer>3</answer>, that is \\boxed{3}", "3"),
    ("<think>\\boxed{4}</think> The answer is 3. I checked.", "3"),
    ("1 1/2", "1.5"),
    ("1e3", "1000"),
    ("1,000", "1000"),
    ("1\\,000", "1{,}000"),
    ("\\{2, 1\\}", "\\{1, 2\\}"),
    ("x=2 \\text{ or } x=1", "1, 2"),
    ("[1, 2)", "[1,2)"),
    ("(-\\infty, 2] \\cup [3, \\infty)", "(-\\infty,2]\\cup[3,\\infty)"),
    ("x > 3", "(3, \\infty)"),
    ("(3, \\infty)", "x>3"),
    ("50\\%", "0.5"),
    ("50\\%", "50"),
    ("5 \\text{ cm}", "5"),
    ("5", "5 \\text{ cm}"),
    ("5 cm", "5\\text{ cm}"),
    ("90^\\circ", "90"),
    ("\\$50", "50"),
    ("x^2+2x+1", "(x+1)^2"),
    ("\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}"),
    ("0.333333", "\\frac{1}{3}"),
    ("\\sqrt{2}/2", "\\frac{1}{\\sqrt{2}}"),
    ("\u22125", "-5"),
    ("x = 3", "3"),
    ("2 + 1 = 3", "3"),
    ("3!", "6"),
    ("Blue", "blue"),
    ("\\text{no real solution}", "no real solution"),
]
DIFFERENT = [
    ("\\boxed{\\frac{1}{3}}", "0.5"),
    ("0.33", "\\frac{1}{3}"),
    ("(1, 2)", "[1, 2]"),
    ("1, 2", "2"),
    ("2", "1, 2"),
    ("1 \\text{ or } 2", "2"),
    ("1 = 2 = 3", "3"),
    ("x = 1 = 2 = 3", "3"),
    ("0.0", "0.0000001"),
    ("e^{-40}", "0.0"),
    ("3 km", "3 m"),
    ("3 \\text{ cm}^2", "3 \\text{ cm}"),
    ("2", "2m"),
    ("(2, 1)", "(1, 2)"),
    ("lueb", "blue"),
    ("x \\ne 3", "3"),
    ("x \\ge 3", "x > 3"),
    ("5.000001", "5"),
    ("10^{20}+1", "10^{20}"),
    ("-3", "3"),
]
INVALID = [
    "",
    "\\boxed{3} or \\boxed{4}",
    "<answer>3</answer> \\boxed{4}",
    "$1$ or $3$",
    "1 2 3",
    "1 \\quad 3",
    "{3",
    "3}",
]
INVALID += [
    "There are surely three of them",
    "x\u00b2",
    "\u00bd",
    "\uff13",
    "Answer: 3\nAnswer: 4",
    "\\frac{1}{",
    "$",
    "3" * 2001,
]
INVALID += ["{" * 60 + "3" + "}" * 60, "3} \\text{ or } {3", "\\[3\\] and \\(4\\)", "@", "\\boxed{}", "<answer>3"]
SAY_MORE = [
    "3 \\text{ is wrong}",
    "3 \\approx 4",
    "3 \\mod 5",
    "3 \\equiv 4",
    "3 \\to 4",
    "3 \\text{ or 5}",
    "3\\text{5}",
]
SAY_MORE += ["3_5", "3_{5}", "3 is wrong", "\\text{not } 3"]
INVALID += SAY_MORE
EQUAL += [("2516_{8}", "2516_8"), ("3 \\pmod 5", "3 \\pmod{5}"), ("3 \\text{ m}", "3")]
UNUSABLE = ["", "\\frac{1}{0}", "@", True, [3], math.nan, math.inf, "The area is three at most", "x\u00b2", None]


@pytest.fixture(scope="module")
def reward():
    return Maths(timeout_s=20)  # generous: nothing here is slow, but the machine may be


def scores(reward, pairs):
    output = reward.score([ask(text, answer) for text, answer in pairs])
    return output.values["maths"].tolist(), output.status["maths"], output.detail


@pytest.mark.integration
def test_every_form_of_the_right_answer_is_perfect(reward):
    values, status, detail = scores(reward, EQUAL)
    wrong = [(pair, reason) for pair, v, reason in zip(EQUAL, values, detail, strict=True) if v != 1]
    assert not wrong and set(status) == {Status.OK}


@pytest.mark.integration
def test_wrong_answers_score_0(reward):
    values, status, detail = scores(reward, DIFFERENT)
    assert values == [0] * len(DIFFERENT)
    assert set(status) == {Status.OK}, detail


def test_texts_without_a_single_formula_are_invalid(reward):
    pairs = [(text, "3") for text in INVALID]
    values, status, _ = scores(reward, [*pairs, ("3", "3")])
    assert values == [0] * len(INVALID) + [1]
    assert [p for p, s in zip(pairs, status, strict=False) if s is not Status.INVALID] == []


def test_unusable_references_are_scorer_failures(reward):
    output = reward.score([ask("3", answer) for answer in UNUSABLE])
    assert set(output.status["maths"]) == {Status.ERROR} and all(map(math.isnan, output.values["maths"]))
    assert [f["maths"].kind for f in output.failures] == ["reference"] * (len(UNUSABLE) - 1) + ["missing"]


@pytest.mark.integration
def test_random_fractions_equal_exact_ones(reward):
    rng = random.Random(0)

    def written(value):
        above, below = value.numerator, value.denominator
        forms = [f"{above}/{below}", f"\\frac{{{above}}}{{{below}}}", f"{3 * above}/{3 * below}"]
        forms += [f"{above / below:.2f}"] if (100 * value).denominator == 1 else []
        forms += [f"{100 * above // below}\\%"] if (100 * value).denominator == 1 and value.denominator > 1 else []
        return rng.choice(forms)

    pairs, expected = [], []
    for _ in range(120):
        truth = Fraction(rng.randint(-9, 9), rng.choice([1, 2, 3, 4, 5, 7]))
        answer = truth if rng.random() < 0.5 else Fraction(rng.randint(-9, 9), rng.choice([1, 2, 3, 4, 5, 7]))
        pairs.append((f"\\boxed{{{written(answer)}}}", written(truth)))
        expected.append(float(answer == truth))
    values, status, _ = scores(reward, pairs)
    assert set(status) == {Status.OK}
    assert [(pair, v) for pair, v, d in zip(pairs, values, expected, strict=True) if v != d] == []


def test_formulas_are_normalised():
    assert extract_formula("1 3/4") == "(1+\\frac{3}{4})"
    assert extract_formula("2e-3") == "2\\times 10^{-3}"
    assert extract_formula("$$ \\frac 1 2 $$") == "\\frac{1}{2}"
    assert extract_formula("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}") == "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"


def test_invalid_time_limits_are_rejected():
    for wrong in (0, -1, math.nan, math.inf):
        with pytest.raises(RewardError, match="maths: timeout_s"):
            Maths(timeout_s=wrong)
