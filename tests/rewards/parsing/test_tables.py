"""Reading tables out of HTML, Markdown and LaTeX."""

import time

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.parsing.tables import ParsedTable, TableCell, TableSection, contents, parse_table

HTML = "<table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table>"


def cells(texts, header=False):
    return tuple(TableCell(tuple(text), header) for text in texts)


WITH_HEADER = ParsedTable((TableSection("thead", (cells("ab", True),)), TableSection("tbody", (cells("12"),))))
BODY = ParsedTable((TableSection("tbody", (cells("ab"), cells("12"))),))


@pytest.mark.parametrize(
    "text",
    [
        HTML,
        f"Here it is:\n```html\n{HTML}\n```\nThat is all.",
        HTML.upper().replace("A<", "a<").replace("B<", "b<"),
        HTML.replace("</td>", "").replace("</th>", "").replace("</tr>", ""),
        HTML.replace("<td>", '<td class="x" style="color: red">').replace("><", ">\n  <"),
        HTML.replace("<td>1", "<!-- <td>9 --><td> &#49; "),
        HTML.replace("<thead>", "<colgroup><col></colgroup><thead>"),
        "| a | b |\n|---|:-:|\n| 1 | 2 |",
        "a|b\n--|--\n1|2",
        "The table:\n\n```\na | b\n--- | ---\n1 | 2\n```",
    ],
)
def test_tables_with_a_header_are_read_in_every_form(text):
    assert parse_table(text) == WITH_HEADER


@pytest.mark.parametrize(
    "text",
    [
        "<table><tr><td>a</td><td>b</td></tr><tr><td>1</td><td>2</td></tr></table>",
        "<table><tbody><tr><td>a<td>b<tr><td>1<td>2</table>",
        "a | b\n1 | 2",
        "\\begin{tabular}{ll}\\hline a & b \\\\\\hline 1 & 2 \\\\ \\bottomrule\\end{tabular}",
        "\\begin{tabular}{l|l} a & b \\\\[2pt] 1 & 2\\end{tabular}",
    ],
)
def test_tables_without_a_header_are_read_in_every_form(text):
    assert parse_table(text) == BODY


def test_cell_content_is_normalised():
    table = parse_table("<table><tr><td> a  <b>b</b><br/>c &lt;b&gt; &amp; e\u0301 </td></tr></table>")
    (cell,) = table.sections[0].rows[0]
    assert cell.content == ("a", " ", "<b>", "b", "</b>", "<br>", *"c <b> & \u00e9")
    assert cell.text == "a b c <b> & \u00e9"
    assert parse_table("a \\| b | c\nd | e").grid() == [["a | b", "c"], ["d", "e"]]
    assert parse_table("\\begin{tabular}{l}5\\% \\& x & y\\end{tabular}").grid() == [["5% & x", "y"]]
    assert contents(["  "]) == ()


def test_trailing_bars_end_a_line_only_if_one_begins_it():
    assert parse_table("a | b\nx | \n| y |").grid() == [["a", "b"], ["x", ""], ["y"]]
    assert parse_table("| a | b |\n| x | |\n| | 2 |").grid() == [["a", "b"], ["x", ""], ["", "2"]]


def test_spanning_cells_fill_every_position():
    html = """<table><tr><td rowspan="2">a</td><td colspan=2>b</td></tr><tr><td>c</td><td rowspan='2'>d</td></tr>
        <tr><td>e</td></tr></table>"""
    assert parse_table(html).grid() == [["a", "b", "b"], ["a", "c", "d"], ["e", "", "d"]]
    latex = "\\begin{tabular}{lll} \\multirow{2}{*}{a} & \\multicolumn{2}{c}{b} \\\\ c & d \\end{tabular}"
    assert parse_table(latex).grid() == [["a", "b", "b"], ["a", "c", "d"]]
    nested = "\\begin{tabular}{l}\\multicolumn{2}{c}{\\multirow{3}{*}{x}}\\end{tabular}"
    assert parse_table(nested).sections[0].rows == ((TableCell(("x",), colspan=2, rowspan=3),),)


def test_sections_and_captions_are_read():
    html = "<table><caption>t</caption><tr><td>1</td></tr><tfoot><tr><td>2</td></tr></tfoot><tr><td>3</td></tr></table>"
    table = parse_table(html)
    assert table.caption == ("t",)
    assert [section.name for section in table.sections] == ["tbody", "tfoot", "tbody"]
    assert table.grid() == [["1"], ["2"], ["3"]]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no table",
        HTML[:-8],
        HTML + HTML,
        f"{HTML}</table>",
        HTML.replace("1", HTML),
        HTML.replace("<tr>", "x<tr>"),
        HTML.replace("</tr>", "</tr><b>"),
        HTML.replace("</td>", "</th>"),
        HTML.replace("<td>1", '<td colspan="0">1'),
        HTML.replace("<td>1", '<td colspan="-1">1'),
        HTML.replace("<td>1", '<td rowspan="1001">1'),
        HTML.replace("<td>1", '<td colspan="99999999999999999999999999">1'),
        HTML.replace("1", "<!-- 1"),
        HTML.replace("1", "&#" + "1" * 5000 + ";"),
        HTML.replace("<thead>", "</thead>"),
        HTML.replace("<tr>", "</tr>", 1),
        HTML.replace("</table>", "<caption>late</caption></table>"),
        f"```\n{HTML}\n```\n```\n{HTML}\n```",
        f"```html\n{HTML}",
        f"{HTML}\\begin{{tabular}}{{l}}a\\end{{tabular}}",
        "a | b\n\nc | d",
        "\\begin{tabular}{l}a",
        "\\begin{tabular}a\\end{tabular}",
        "\\begin{tabular}{l}\\multicolumn{2}{c}{a\\end{tabular}",
        "\\begin{tabular}{l}a\\end{tabular}\\begin{tabular}{l}a\\end{tabular}",
        "x" * 200_001,
    ],
)
def test_texts_without_a_single_table_are_invalid(text):
    with pytest.raises(InvalidAnswer):
        parse_table(text)


def test_huge_spans_are_rejected():
    wide = "<td colspan=1000 rowspan=1000>x</td>"
    with pytest.raises(InvalidAnswer, match="more than 10000 places"):
        parse_table(f"<table><tr>{wide * 9}</tr></table>").grid()


@pytest.mark.integration
def test_hostile_texts_are_parsed_in_linear_time():
    started = time.process_time()
    for piece in ("<", "<!--", "<a ", '<td a="', "</", "&#", "<td x", "|", "|-", "-|", "\\\\", "<td>", "{", "<table"):
        many = piece * (150_000 // len(piece))
        for text in (
            many,
            f"<table><tr><td>{many}</table>",
            f"a|b\n{many}",
            f"\\begin{{tabular}}{{l}}{many}\\end{{tabular}}",
        ):
            try:
                parse_table(text)
            except InvalidAnswer:
                continue
    assert time.process_time() - started < 30  # Python's own parser of HTML takes more than a minute for "<!--"
