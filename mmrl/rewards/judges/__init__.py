"""Judges: a vision-language model behind an OpenAI-compatible endpoint that scores answers.

    endpoint.py    requests, and a named failure for each way in which they can fail
    replies.py     validation of a reply, and parsing of its text into a probability, a choice, a number or an order
    templates.py   prompts as data files, and escaping of the texts that fill them
    judge_base.py  settings and requests that the rewards share
    judge.py       the rewards: one answer, a checklist, pairs, a ranking

A judge that is down, slow or incoherent gives NaN, counted by the kind of failure; never a zero.
"""
