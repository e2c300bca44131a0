"""Each prompt has a search tree, and pieces of its recorded answers are learnt from with the values of their nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.loading.load import load_config
from mmrl.config.starts import StartsConfig
from mmrl.config.validation import validation_errors
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, row_starts
from mmrl.training.rollouts.search_tree import FrontierWeights, Node, SearchTree, back_up, backed_up
from mmrl.training.rollouts.tree_search import TreeSearch, node_advantages
from tests.training.token_policy import END, TokenPolicy, prompt_of
from tests.training.token_run import collect, source, starts_of_groups, trainer

NO_WEIGHTS = FrontierWeights(0.0, 0.0, 0.0)
RULE = TreeSearch(answers=2, step_tokens=3, max_depth=3)
WIDTH = 2


class Pieces(TokenPolicy):
    """It writes `script[prefix]`, a piece for each row; all tokens are equally likely, so no answer is less certain."""

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}

    def __init__(self, script: dict[str, Sequence[str]]) -> None:
        super().__init__(spread=0.0)
        self.script = script
        self.requested: list[RolloutRequest] = []

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        self.requested += requests
        pieces, prefixes = [], []
        for each in requests:
            prefix = each.start.prefix if each.start else ""
            pieces += self.script[prefix][: each.n]
            prefixes += [prefix] * each.n
        tokens = torch.tensor([[int(c) for c in piece] + [END] * (3 - len(piece)) for piece in pieces])
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = [request.group for request in requests for _ in range(request.n)]
        rollout = self._rollout(samples, groups, torch.tensor([prompt_of(each) for each in samples]), tokens)
        texts = [prefix + piece for prefix, piece in zip(prefixes, pieces, strict=True)]
        return replace(rollout, media=texts, starts=row_starts(requests))


class EndsWith3(Reward):
    """1 for an answer that ends with 3."""

    name, needs, range = "ends_with_3", ("text",), (0.0, 1.0)

    def score_one(self, item) -> float:
        return float(str(item.text).endswith("3"))


SCRIPT = {"": ("121", "222"), "121": ("1", "2"), "222": ("3", "1")}
"""Both ends of the first piece are wrong, and one of the second piece is right."""


def searched(policy: Pieces, rule: TreeSearch = RULE, **changes):
    return source(policy, EndsWith3(), starts=rule, group_size=WIDTH, micro_batch=64, **changes)


def test_an_outcome_decays_towards_the_root_and_never_makes_a_positive_value_smaller():
    root = Node()
    a, c = Node(parent=root), Node(ended=True, outcome=1.0)
    c.parent = a
    back_up(c)
    assert [root.value, a.value, c.value] == pytest.approx([1 / 3, 2 / 3, 1])
    d = Node(parent=a, ended=True, outcome=-1.0)
    back_up(d)
    assert [root.value, a.value, d.value] == pytest.approx([1 / 3, 2 / 3, -1]) and root.visits == a.visits == 2
    assert a.mean_value == pytest.approx(1 / 3) and Node().mean_value == 0
    assert backed_up(-0.5, -0.25) == -0.75 and backed_up(-0.5, 0.25) == 0.25 and backed_up(0.0, -0.25) == -0.25
    path = [Node()]
    for _ in range(19):
        path.append(Node(parent=path[-1]))
    path[-1].outcome = -1.0
    back_up(path[-1])
    assert path[0].value == -0.1 and path[1].value == pytest.approx(-0.1) and path[2].value == pytest.approx(-3 / 20)
    with pytest.raises(ValueError, match="not known"):
        back_up(Node())


def test_a_frontier_score_by_hand():
    parent = Node(parent=Node(), value=-0.5, visits=2)
    node = Node(parent=parent, tokens=4, surprisal=6.0)
    scores = [FrontierWeights(*each).score(node, 8) for each in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0.4, 0.2, 0.01))]
    assert scores == pytest.approx([math.tanh(-0.25), 1.5, 0.5, 0.4 * math.tanh(-0.25) + 0.3 + 0.005])
    with pytest.raises(ValueError, match="root"):
        NO_WEIGHTS.score(Node(), 8)


def test_a_search_goes_down_until_an_answer_ends_and_then_on_at_the_best_node_of_the_whole_tree():
    tree = SearchTree(FrontierWeights(0.4, 0.0, 0.01), max_depth=8, answers=2)
    a, b, b2 = Node(1), Node(2), Node(3)
    tree.expand([a, b, b2])
    assert tree.current is a and [each.visits for each in (a, b, b2)] == [1, 1, 1] and tree.root.visits == 0
    c, d, a3 = Node(4, ended=True, outcome=-1.0), Node(5, ended=True, outcome=-1.0), Node(6)
    tree.expand([c, d, a3])
    assert tree.recorded == [c] and tree.root.value == pytest.approx(-1 / 3) and a.value == pytest.approx(-2 / 3)
    assert a.visits == 2 and a.mean_value == tree.root.mean_value == pytest.approx(-1 / 3)
    assert tree.current is a3  # parents are equally bad: the deeper node, sqrt(2/8) over sqrt(1/8)
    e = Node(7, ended=True, outcome=1.0)
    tree.expand([e, Node(8), Node(9)])
    assert tree.recorded == [c, e] and tree.current is None
    assert a.value == pytest.approx(1 / 2) and a3.value == pytest.approx(3 / 4)
    advantages = node_advantages(tree)  # the mean outcome is 0
    assert [row for row, _ in advantages] == [1, 4, 1, 6, 7]
    assert [value for _, value in advantages] == pytest.approx([math.tanh(0.5), -1, math.tanh(0.5), math.tanh(0.75), 1])
    with pytest.raises(ValueError, match="over"):
        tree.expand([Node()])


def test_a_bad_parent_is_left():
    tree = SearchTree(FrontierWeights(0.4, 0.0, 0.0), max_depth=8, answers=3)
    a, b = Node(1), Node(2)
    tree.expand([a, b])
    c, d = Node(3), Node(4)
    tree.expand([c, d])
    tree.expand([Node(5, ended=True, outcome=-1.0), Node(6)])
    assert [each.mean_value for each in (tree.root, a, c)] == pytest.approx([-1 / 4, -2 / 4 / 2, -3 / 4 / 2])
    assert tree.current is d  # not the other child of c; b has as good a parent, and comes later
    by_uncertainty = SearchTree(FrontierWeights(0.0, 1.0, 0.0), max_depth=8, answers=3)
    by_uncertainty.expand([Node(1), Node(2, tokens=2, surprisal=1.0), sure := Node(3, tokens=2, surprisal=4.0)])
    by_uncertainty.expand([Node(4, ended=True, outcome=-1.0), Node(5, ended=True), Node(6, ended=True)])
    assert by_uncertainty.current is sure


def test_right_answers_are_recorded_before_confident_wrong_ones_and_unknown_ones_never():
    wrong = Node(1, tokens=2, surprisal=0.1, ended=True, outcome=-1.0)
    right = [Node(2, tokens=2, surprisal=2.0, ended=True, outcome=1.0), Node(3, None, 2, 1.0, True, 1.0)]
    unknown = Node(4, tokens=2, surprisal=0.0, ended=True)
    for children, expected in (
        ([wrong, *right, unknown], right[1]),
        ([unknown, Node(5, None, 2, 3.0, True, -1.0), wrong], wrong),
    ):
        tree = SearchTree(NO_WEIGHTS, max_depth=8, answers=2)
        tree.expand(children)
        assert tree.recorded == [expected] and tree.current is None  # no node is left
    tree = SearchTree(NO_WEIGHTS, max_depth=8, answers=2)
    tree.expand([unknown, rest := Node(6)])
    assert tree.recorded == [] and tree.current is rest


def test_pieces_of_recorded_answers_are_learnt_from_with_the_values_of_their_nodes():
    policy = Pieces(SCRIPT)
    found = collect(searched(policy))
    requests = [(each.group, each.start.prefix, each.n, each.start.max_new_tokens) for each in policy.requested]
    assert sorted(requests) == sorted((group, prefix, 2, 3) for group in range(4) for prefix in SCRIPT)
    assert found.metrics["starts/rounds"] == 3 and found.metrics["starts/rows"] == 24
    assert found.metrics["starts/trained_rows"] == 16 and found.metrics["tokens"] == 4 * (6 + 4 + 4)
    named = {name.removeprefix("tree/"): value for name, value in found.metrics.items() if name.startswith("tree/")}
    assert named == {"solved": 1, "mixed": 1, "answers": 2, "depth": 2}
    assert found.metrics["reward/total"] == 0.5  # of recorded answers
    values = {"121": math.tanh(-2 / 3), "1211": -1.0, "222": math.tanh(2 / 3), "2223": 1.0}
    for batch in found.micro_batches:
        expected = [values[text] for text in batch.rollout.media]
        assert batch.advantages.tolist() == pytest.approx(expected)
        torch.testing.assert_close(batch.step_advantages, batch.advantages[:, None] * batch.rollout.mask)
        assert len(starts_of_groups(batch.rollout)) == len(batch.rollout.group_index.unique())  # a round has one node


def test_the_mean_outcome_is_the_baseline_and_a_shared_piece_has_the_sum_of_its_advantages():
    script = {"": ("121", "222"), "121": ("1", "333"), "121333": ("2", "1"), "222": ("1", "1")}
    policy = Pieces(script)
    found = collect(searched(policy, replace(RULE, depth=1.0)))
    assert {each.start.prefix for each in policy.requested} == {"", "121", "121333"}  # the deeper node comes first
    shared = 2 * (math.tanh(-2 / 3 - 2 / 4) + 1)  # both recorded answers are wrong: their mean is -1
    values = {"121": shared, "1211": 0.0, "121333": math.tanh(-3 / 4) + 1, "1213332": 0.0}
    for batch in found.micro_batches:
        assert batch.advantages.tolist() == pytest.approx([values[text] for text in batch.rollout.media])
    assert found.metrics["tree/solved"] == 0 == found.metrics["tree/mixed"]


def test_an_answer_ends_at_the_most_pieces():
    endless = {"": ("111", "112"), "111": ("111", "113")}
    found = collect(searched(Pieces(endless), replace(RULE, max_depth=2, answers=1)))
    assert found.metrics["starts/rounds"] == 2 and found.metrics["tree/solved"] == 1
    assert {text for batch in found.micro_batches for text in batch.rollout.media} == {"111", "111113"}


class Unscored(EndsWith3):
    """It cannot score an answer that has ended."""

    def score_one(self, item) -> float:
        return math.nan if len(str(item.text)) > 3 else 0.0


def test_without_a_recorded_answer_all_pieces_are_trained_on_without_advantages():
    found = collect(searched(Pieces(SCRIPT), suite=RewardSuite([(Unscored(), 1.0)], min_valid_share=0.0)))
    assert found.metrics["tree/answers"] == 0 and found.metrics["starts/trained_rows"] == 24
    assert not any(batch.advantages.any() for batch in found.micro_batches)


def test_a_right_end_becomes_likelier_and_a_recorded_wrong_one_less(tmp_path):
    policy = Pieces(SCRIPT)
    before = policy.logits.detach().clone()
    trainer(tmp_path / "run", searched(policy), GRPOConfig(), training={"iterations": 1}, lr=0.05).train()
    moved = (policy.logits.detach() - before)[:, 0]  # of the first token of a piece, [prompts, vocabulary]
    trained = moved.any(1)
    assert trained.any() and (moved[trained][:, 3] > 0).all() and (moved[trained][:, 1] < 0).all()


def test_settings_that_cannot_work_are_named():
    assert StartsConfig(name="tree_search", args={"answers": 4}).rule() == TreeSearch(answers=4)
    for args in ({"answers": 0}, {"step_tokens": 0}, {"max_depth": 0}):
        with pytest.raises(ConfigError, match=r"data\.starts: tree_search: answers"):
            StartsConfig(name="tree_search", args=args).rule()
    search = "data.starts={name: tree_search}"
    assert validation_errors(load_config("shapes-reasoning", [search, "algorithm={name: grpo}"])) == []
    for algorithm in ("{name: grpo, advantage: {name: reinforce_pp}}", "{name: rejection_sft}"):
        (error,) = validation_errors(load_config("shapes-reasoning", [search, f"algorithm={algorithm}"]))
        assert error.startswith("algorithm.advantage.name: tree_search gives pieces their advantages")
    replay = "data.replay={name: success}"
    (error,) = validation_errors(load_config("shapes-reasoning", [search, "algorithm={name: grpo}", replay]))
    assert error.startswith("data.replay: it keeps answers with their rewards")


def test_prompts_whose_recorded_answers_are_equally_right_can_be_left_out():
    wrong = {"": ("121", "222"), "121": ("1", "2"), "222": ("1", "2")}
    every = collect(searched(Pieces(wrong)))
    advantages = {
        text: value
        for batch in every.micro_batches
        for text, value in zip(batch.rollout.media, batch.advantages.tolist(), strict=True)
    }
    assert advantages["121"] == pytest.approx(math.tanh(-2 / 3) + 1) and advantages["1211"] == 0
    none = collect(searched(Pieces(wrong), replace(RULE, only_mixed=True)))
    assert not any(batch.advantages.any() for batch in none.micro_batches) and none.metrics["reward/total"] == 0
    mixed = collect(searched(Pieces(SCRIPT), replace(RULE, only_mixed=True)))
    assert mixed.metrics["starts/trained_rows"] == 16
