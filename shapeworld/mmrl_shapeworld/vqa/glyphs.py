"""Ten capital letters, drawn five pixels wide and seven high."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROWS = {
    "A": (" ### ", "#   #", "#   #", "#####", "#   #", "#   #", "#   #"),
    "C": (" ####", "#    ", "#    ", "#    ", "#    ", "#    ", " ####"),
    "E": ("#####", "#    ", "#    ", "#### ", "#    ", "#    ", "#####"),
    "F": ("#####", "#    ", "#    ", "#### ", "#    ", "#    ", "#    "),
    "H": ("#   #", "#   #", "#   #", "#####", "#   #", "#   #", "#   #"),
    "K": ("#   #", "#  # ", "# #  ", "##   ", "# #  ", "#  # ", "#   #"),
    "L": ("#    ", "#    ", "#    ", "#    ", "#    ", "#    ", "#####"),
    "O": (" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "),
    "T": ("#####", "  #  ", "  #  ", "  #  ", "  #  ", "  #  ", "  #  "),
    "X": ("#   #", "#   #", " # # ", "  #  ", " # # ", "#   #", "#   #"),
}
LETTERS = tuple(_ROWS)
WIDTH, HEIGHT = 5, 7
GLYPHS: dict[str, NDArray[np.bool_]] = {
    letter: np.array([[dot == "#" for dot in row] for row in rows]) for letter, rows in _ROWS.items()
}
"""[7, 5] of each letter."""


def written(text: str, scale: int) -> NDArray[np.bool_]:
    """[7 · scale, (6 · letters − 1) · scale]; where ink stands. Letters are one dot apart."""
    dots = np.zeros((HEIGHT, (WIDTH + 1) * len(text) - 1), bool)
    for place, letter in enumerate(text):
        dots[:, (WIDTH + 1) * place : (WIDTH + 1) * place + WIDTH] = GLYPHS[letter]
    return np.asarray(dots.repeat(scale, 0).repeat(scale, 1))
