"""Four kinds of questions that the embedded VLM was never taught: screens, balances, moments of a clip, tables.

Each comes with the right answer and with that of a careless annotator, as in `mmrl_shapeworld.vqa.questions`. Here
the annotator's answers are the demonstrations: a run imitates them first, and a reward corrects what they got wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mmrl_shapeworld.captions import KINDS
from mmrl_shapeworld.scenes import COLOURS
from mmrl_shapeworld.vqa.canvas import FRAMES_PER_SECOND, INK, LINE, NUMBERS, PIXELS, blank, paint, scatter
from mmrl_shapeworld.vqa.glyphs import HEIGHT, LETTERS, WIDTH, written
from mmrl_shapeworld.vqa.questions import FRAMES, IN_PIXELS, SCALE, Question, habit, named, slip

SIDES = ("left", "right", "none")
BAR = 6
"""Height of the bar at the top of a screen, in pixels."""
UNIT, ARM = 6, 8
"""Pixels of a weight's side and of a step along the beam."""


def gui(rng: np.random.Generator) -> Question:
    """Ask for a click on one of three or four buttons. Annotators click too low and right, one in eight on another."""
    count = int(rng.integers(3, 5))
    kinds = [KINDS[n] for n in rng.permutation(len(KINDS))[:count]]
    sides = rng.integers(15, 19, count).tolist()
    picture = blank()
    picture[:BAR] = LINE
    picture[2:4, [3, 4, 7, 8, 11, 12]] = INK
    boxes = []
    for kind, side, place in zip(kinds, sides, rng.permutation(4).tolist(), strict=False):
        left = 28 * (place % 2) + int(rng.integers(1, 28 - side))
        top = BAR + 25 * (place // 2) + int(rng.integers(1, 25 - side))
        picture[top : top + side, left : left + side] = LINE
        paint(picture, kind, left + 3, top + 3, side - 6)
        boxes.append((left, top, left + side, top + side))
    x1, y1, x2, y2 = boxes[0]
    hit = boxes[slip(0, range(count), 0.875, rng)]
    x, y = ((hit[n] + hit[n + 2]) / 2 + rng.normal(4.0, 4.0) for n in (0, 1))
    return Question(
        f"Click the {named(kinds[0])}.",
        {"action": "click", "box": [x1, y1, x2, y2]},
        click((x1 + x2) // 2, (y1 + y2) // 2),
        click(*(min(max(round(each), 0), PIXELS) for each in (x, y))),
        (picture,),
        IN_PIXELS,
    )


def science(rng: np.random.Generator) -> Question:
    """Ask which way a beam tips with a stack of weights on each side. Annotators ignore the arms."""
    (left, right), arms = (rng.integers(1, high, 2).tolist() for high in (5, 4))
    colours = [list(COLOURS)[n] for n in rng.permutation(len(COLOURS))[:2]]
    picture, middle, beam = blank(), PIXELS // 2 + int(rng.integers(-1, 2)), int(rng.integers(30, 47))
    picture[beam : beam + 2, middle - 27 : middle + 27] = INK
    for row in range(8):  # what the beam rests on
        picture[beam + 2 + row, middle - row // 2 - 1 : middle + row // 2 + 1] = LINE
    for sign, weights, arm, colour in zip((-1, 1), (left, right), arms, colours, strict=True):
        at = middle + sign * ARM * arm - UNIT // 2
        for number in range(weights):
            top = beam - (UNIT + 1) * (number + 1)
            picture[top : top + UNIT, at : at + UNIT] = NUMBERS[colour]
    side, heavier = (_side(b - a) for a, b in ((left * arms[0], right * arms[1]), (left, right)))
    annotated = habit(side, heavier, SIDES, rng) if side != heavier else slip(side, SIDES, 0.8, rng)
    letters = dict(zip(SIDES, "ABC", strict=True))
    options = ", ".join(f"{letter} {name}" for name, letter in letters.items())
    prompt, metadata = f"Which way does it tip? {options}.", {"choices": list(SIDES)}
    return Question(prompt, letters[side], letters[side], letters[annotated], (picture,), metadata)


def temporal_grounding(rng: np.random.Generator) -> Question:
    """From when to when a thing is there, beside one that drifts all the while. Annotators press their button late."""
    there, other = (KINDS[n] for n in rng.permutation(len(KINDS))[:2])
    begin, end = sorted(rng.choice(FRAMES + 1, 2, replace=False).tolist())
    (x, y), (left, top) = scatter((17, 24), rng)
    frames = []
    for number in range(FRAMES):
        frame = blank()
        paint(frame, other, left + 3 * number, top + 3 * number, 15)  # in its own square of 24
        if begin <= number < end:
            paint(frame, there, x, y, 17)
        frames.append(frame)
    late = [min(at + int(rng.choice(3, p=(0.4, 0.45, 0.15))), FRAMES) for at in (begin, end)]
    late[0] = min(late[0], late[1] - 1)
    answer = [at / FRAMES_PER_SECOND for at in (begin, end)]
    return Question(f"When is the {named(there)} there?", answer, span(begin, end), span(*late), tuple(frames))


def table2latex(rng: np.random.Generator) -> Question:
    """A table of two to four letters. Annotators take C for O, E for F and K for X, and forget the last row."""
    rows, columns = ((1, 2), (2, 1), (2, 2))[rng.integers(3)]
    letters = [[LETTERS[n] for n in rng.integers(len(LETTERS), size=columns)] for _ in range(rows)]
    picture, cell, colour = blank(), PIXELS // 2, int(rng.choice([INK, *NUMBERS.values()]))
    top, left = (int(rng.integers(0, PIXELS - cell * size + 1)) for size in (rows, columns))
    for row in range(rows + 1):
        picture[min(top + cell * row, PIXELS - 1), left : left + cell * columns] = LINE
    for column in range(columns + 1):
        picture[top : top + cell * rows, min(left + cell * column, PIXELS - 1)] = LINE
    for row, line in enumerate(letters):
        for column, letter in enumerate(line):
            y, x = top + cell * row + (cell - SCALE * HEIGHT) // 2, left + cell * column + (cell - SCALE * WIDTH) // 2
            picture[y : y + SCALE * HEIGHT, x : x + SCALE * WIDTH][written(letter, SCALE)] = colour
    read = [[_misread(letter, rng) for letter in line] for line in letters]
    if rows > 1 and rng.random() < 0.25:
        read.pop()
    return Question("Write the table.", tabular(letters), tabular(letters), tabular(read), (picture,))


NEW_TASKS: dict[str, Callable[[np.random.Generator], Question]] = {
    "gui": gui,
    "science": science,
    "temporal-grounding": temporal_grounding,
    "table2latex": table2latex,
}


def click(x: int, y: int) -> str:
    """A click as UI-TARS writes calls."""
    return f"click({x}, {y})"


def span(begin: int, end: int) -> str:
    """From one frame's beginning to another's, in seconds."""
    return f"[{begin / FRAMES_PER_SECOND}, {end / FRAMES_PER_SECOND}]"


def tabular(cells: list[list[str]]) -> str:
    """LaTeX, as short as can be: every token of an answer costs a step."""
    lines = "\\\\".join("&".join(line) for line in cells)
    return f"\\begin{{tabular}}{{{'c' * len(cells[0])}}}{lines}\\end{{tabular}}"


def _misread(letter: str, rng: np.random.Generator) -> str:
    taken = {"C": "O", "E": "F", "K": "X"}.get(letter)
    return habit(letter, taken, LETTERS, rng) if taken else slip(letter, LETTERS, 0.8, rng)


def _side(difference: int) -> str:
    return SIDES[2] if not difference else SIDES[int(difference > 0)]
