"""The numbers of the screens of `screen-train` that `shapeworld:vlm-worlds` gets right now and then.

Of eight answers at temperature 1, one to four are right, and kinds of action are as frequent as in training, as far as
there are. `python -m tools.shapeworld_pretrain.hard_screens` chooses by this rule; the numbers below came from other
random answers than those that it draws.
"""

NUMBERS = (
    1, 2, 4, 5, 6, 8, 9, 10, 13, 15, 16, 19, 22, 24, 25, 26, 28, 30, 34, 36, 37, 41, 42, 43, 46, 48, 49, 50, 51, 53,
    54, 56, 57, 60, 61, 62, 73, 74, 75, 77, 78, 86, 87, 88, 90, 93, 95, 96, 98, 100, 104, 107, 111, 112, 113, 114,
    120, 122, 123, 126, 130, 134, 135, 139, 141, 142, 144, 145, 148, 149, 150, 151, 154, 156, 157, 159, 161, 164,
    165, 166, 167, 168, 169, 171, 172, 173, 174, 175, 177, 178, 179, 181, 182, 183, 185, 187, 191, 192, 193, 199,
    200, 203, 205, 208, 210, 216, 219, 220, 221, 224, 225, 226, 231, 233, 234, 242, 257, 259, 263, 264, 271, 282,
    339, 413, 434, 478, 510, 528, 585, 713, 755, 779, 866, 899, 900, 1020,
)  # fmt: skip
