"""Worlds of questions in which single mechanisms of training decide: crowds, unseen looks, screens, captions, tables.

Each module draws the questions of one world, in its usual form and in out-of-distribution forms, and
`mmrl_shapeworld.worlds.world_splits` makes data sets of them.
"""
