"""Tables made to break a comparison or to cheat it.

Each gives a score or a status, never an exception; none but the true table is perfect; the true one always is.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import RewardInput, Status
from mmrl.rewards.rules.chart_answers import ChartTable
from mmrl.rewards.rules.teds import TEDS

HTML = (
    "<table><thead><tr><th>Name</th><th>It's</th><th>{n}</th></tr></thead><tbody>"
    "<tr><td>D\u00fcrer</td><td>1</td><td>2</td></tr><tr><td>Ada</td><td>3</td><td>4</td></tr></tbody></table>"
)
BARS = "| Name | It's | {n} |\n|---|---|---|\n| D\u00fcrer | 1 | 2 |\n| Ada | 3 | 4 |"
REWARDS = [TEDS(), TEDS(structure_only=True), ChartTable()]
STRICT = [REWARDS[0], REWARDS[2]]


def run(reward, texts, truth=HTML):
    """Scores and statuses; the truth stands at the end, as the control."""
    items = [RewardInput("0", 0, "?", text=text, references={"answer": truth}) for text in [*texts, truth]]
    output = reward.score(items)
    values, status = output.values[reward.name], output.status[reward.name]
    assert set(status) <= {Status.OK, Status.INVALID}, output.detail
    assert ((values >= 0) & (values <= 1)).all()
    assert values[-1] == 1 and status[-1] is Status.OK
    return values[:-1], status[:-1]


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("table", [HTML, BARS])
def test_every_form_of_the_true_table_is_perfect(reward, table):
    texts = [
        f"```\n{table}\n```",
        f"```html\n{table}\n```",
        f"<think>{HTML}</think>\n{table}",
        f"<answer>{table}</answer>",
    ]
    values, _ = run(reward, [*texts, f"Here you are:\n\n{table}\n\nDone."])
    assert (values == 1).all()


@pytest.mark.parametrize("reward", REWARDS)
def test_several_or_truncated_tables_are_invalid(reward):
    texts = [HTML + HTML, f"{BARS}\n\n{BARS}", f"<answer>{HTML}</answer><answer>{HTML}</answer>", f"<answer>{HTML}"]
    texts += [HTML[:cut] for cut in range(0, len(HTML), 17)] + [
        "",
        " ",
        "no table",
        f"```\n{HTML}",
        f"```\n{HTML}\n```\n```\n{HTML}\n```",
    ]
    texts += [
        HTML.replace("Ada", HTML),
        HTML + "\\begin{tabular}{l}a\\end{tabular}",
        "<table></table>",
        "\\begin{tabular}{l}",
    ]
    values, status = run(reward, texts)
    assert (values == 0).all() and set(status) == {Status.INVALID}


@pytest.mark.parametrize("reward", STRICT)
def test_changed_cells_lower_the_score(reward):
    texts = [
        HTML.replace("D\u00fc", "Du"),
        HTML.replace("Ada", "\u0410da"),
        HTML.replace("It's", "It\u2019s"),
        HTML.replace("4", "\uff14"),
    ]
    texts += [HTML.replace("4", "4.000000001"), HTML.replace("4", ""), HTML.replace("4", "4 4"), HTML.replace("3", "4")]
    texts += [
        HTML.replace("<tr><td>Ada</td><td>3</td><td>4</td></tr>", ""),
        BARS + "\n| Ada | 3 | 4 |",
        BARS[:-1] + "| 5 |",
        BARS + "\n| z |",
    ]
    values, _ = run(reward, texts)
    assert (values < 1).all(), values
    values, _ = run(
        reward, [HTML.replace("\u00fc", "u\u0308"), HTML.replace("It's", "It&#39;s"), HTML.replace("Ada", " Ada\n")]
    )
    assert (values == 1).all()


@pytest.mark.parametrize("reward", [REWARDS[0], REWARDS[1]])
def test_changed_structure_lowers_the_score(reward):
    texts = [
        HTML.replace("<td>4", '<td colspan="2">4'),
        HTML.replace("<td>4", '<td rowspan="2">4'),
        HTML.replace("th>", "td>"),
    ]
    texts += [
        HTML.replace("thead", "tbody"),
        HTML.replace("</tr><tr>", ""),
        HTML.replace("<td>4</td>", ""),
        BARS + "\n| | | |",
    ]
    values, _ = run(reward, texts)
    assert (values < 1).all()


@pytest.mark.parametrize("reward", REWARDS)
def test_stuffed_tables_are_not_perfect(reward):
    rows = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{n}</td>' for n in range(5))}</tr>" for name in ("D\u00fcrer", "Ada")
    )
    values, _ = run(
        reward,
        [
            HTML.replace("<tbody>", f"<tbody>{rows}"),
            f"<table>{rows}</table>",
            BARS + "".join(["\n| Ada | 3 | 4 |"] * 50),
        ],
    )
    assert (values < 0.9).all()


@pytest.mark.integration
@pytest.mark.parametrize("reward", REWARDS)
def test_hostile_tables_are_scored_quickly(reward):
    started = time.process_time()
    cell = '<td colspan="1000" rowspan="1000">x</td>'
    hostile = [
        f"<table><tr>{cell * 100}</tr></table>",
        "<table>" + "<tr>" * 30_000 + "</table>",
        "<table>" * 20_000,
        "<!--" * 40_000,
    ]
    hostile += [
        "<table><tr><td>" + "<b>" * 60_000 + "</table>",
        "|" * 150_000,
        "|-" * 80_000,
        "a|b\n" * 50_000,
        "`" * 100_000,
    ]
    hostile += [
        "\\begin{tabular}{l}" + "\\multirow{2}{*}{" * 9_000 + "\\end{tabular}",
        "<table><tr><td>&" + "#9" * 90_000 + ";</table>",
    ]
    hostile += [
        "<table><tr><td>" + "x" * 150_000 + "</table>",
        "<table>" + "<tr><td>x" * 400 + "</table>",
        "x" * 1_000_001,
        "\x00",
        "\ud83d",
    ]
    values, _ = run(reward, hostile)
    assert (values < 1).all()
    assert time.process_time() - started < 60


@pytest.mark.integration
@given(st.text(alphabet="<>/tabledhr|-\n \\&\"='1x", max_size=80))
def test_texts_like_tables_are_scored_or_invalid(text):
    for reward in REWARDS:
        run(reward, [text, f"<table>{text}</table>", f"<table><tr><td>{text}</td></tr></table>", f"{BARS}\n{text}"])


@given(
    st.lists(st.lists(st.sampled_from(["a", "b", "1", "2"]), min_size=2, max_size=2), min_size=2, max_size=4), st.data()
)
def test_small_tables_are_perfect_only_if_equal(rows, data):
    other = data.draw(
        st.lists(st.lists(st.sampled_from(["a", "b", "1", "2"]), min_size=2, max_size=2), min_size=2, max_size=4)
    )
    written = ["\n".join(" | ".join(row) for row in table) for table in (rows, other)]
    (value,), _ = run(TEDS(), [written[1]], written[0])
    assert (value == 1) == (rows == other)
    (value,), _ = run(ChartTable(), [written[1]], written[0])
    facts = [sorted((row[0], table[0][1], row[1]) for row in table[1:]) for table in (rows, other)]
    turned = sorted((other[0][1], row[0], row[1]) for row in other[1:])
    assert (value == 1) == (facts[0] in (facts[1], turned))
