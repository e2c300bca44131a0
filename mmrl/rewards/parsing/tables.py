"""Reading the one table in an answer, in HTML, Markdown or LaTeX, fenced or not."""

from __future__ import annotations

from mmrl.rewards.base import InvalidAnswer
from mmrl.rewards.parsing.html_tables import read_html
from mmrl.rewards.parsing.json_text import unfenced
from mmrl.rewards.parsing.table_model import LONGEST, Table
from mmrl.rewards.parsing.text_tables import read_bars, read_latex


def read_table(text: str) -> Table:
    """The one table in a text.

    HTML by its <table>, LaTeX by its tabular, and otherwise lines with bars. Prose around it is passed over.

    Raises:
        InvalidAnswer: none, several, or one that is not well formed.
    """
    if len(text) > LONGEST:
        raise InvalidAnswer(f"the text has {len(text)} characters; at most {LONGEST} are read for a table")
    text = unfenced(text)
    is_html, is_latex = "<table" in text.lower(), "\\begin{tabular}" in text
    if is_html and is_latex:
        raise InvalidAnswer("there is a table in HTML and another in LaTeX")
    if is_html:
        return read_html(text)
    return read_latex(text) if is_latex else read_bars(text)
