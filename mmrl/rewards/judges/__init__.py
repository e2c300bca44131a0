"""Judges: a vision-language model behind any OpenAI-compatible endpoint says how good answers are.

    endpoint.py    one request: what is sent, and every way in which it can fail, by name
    replies.py     what a server sent back, checked
    verdicts.py    from a reply to a number, a choice or an order, strictly
    templates.py   prompts as data files, and text that cannot leave its place in them
    pictures.py    pictures and videos as a request carries them
    judge_base.py  what the four rewards share; point.py, pairs.py, checklist.py, ranking.py: the rewards

A judge that is down, slow or talks nonsense gives NaN, counted by kind; it never gives a zero.
"""
