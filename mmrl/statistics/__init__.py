"""Statistics of scores and answers: confidence intervals and diversity.

intervals   Student's t of paired differences, the percentile bootstrap, and the verdict that an interval allows
distances   distances between the answers to one prompt, and from the base model's answers

Needs numpy and scipy only, so that results are read and compared without torch.
"""
