"""Prediction of a run on several devices, from one micro-batch that is measured on this machine.

assumptions        the interconnect and the other things that one device cannot measure; seconds of a collective
prediction         seconds of an iteration on N devices, from seconds of a call: arithmetic alone
placement          a sweep over device counts, and the `run.place` that wins
phase_measurement  one micro-batch of each phase, with the model, the objective and the rewards of a recipe
loop_observers     the sections of a training loop that are observed: seconds, bytes, calls of the models
plan               `plan_run`: measure, predict, and the warnings of a recipe that is too small
"""
