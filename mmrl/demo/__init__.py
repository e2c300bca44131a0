"""The app that compares checkpoints side by side: `mmrl demo RUN ...`.

app                  the pages and the server: loopback by default, no files but its own, no requests to others
state                what one running app holds: checkpoints, samples, sessions, votes
checkpoint_columns   the checkpoints that are compared, by short names
request_validation   bounds of everything that a browser or a program sends: hosts, sizes, values, uploads
jobs                 background work that reports progress and can be stopped
generate             one checkpoint generates, the others wait
scores               rewards of what was generated
grid                 answers by row and checkpoint with their differences, and their HTML
grid_job             the work that fills a grid
reward_curves        reward curves and notes of the runs
answer_boxes         boxes in answers
video_clips          videos side by side
votes                blind votes, kept as preference pairs
error_handling       errors as messages without paths

Files whose name begins with `tab_` build one tab in Gradio each; only `app` imports them.
"""

import os

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before any module imports gradio, which may read it once
