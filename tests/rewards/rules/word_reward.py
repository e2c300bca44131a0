"""A custom reward in a file, for tests of rewards that use another reward to decide what is right."""

from mmrl.rewards import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed


class WordReward(Reward):
    """1 for "right", 0.9 for "most", 0.5 for "half", 0 for "wrong", failing for "down" and for anything else."""

    name, needs, range = "word_reward", ("text",), (0.0, 1.0)

    def score_one(self, item):
        word = item.text.split()[0]
        if word == "down":
            raise ScoringFailed("503", "http_503", transient=True)
        return {"right": 1.0, "most": 0.9, "half": 0.5, "wrong": 0.0}[word]
