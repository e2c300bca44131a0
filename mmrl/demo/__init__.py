"""The app that compares checkpoints: `mmrl demo RUN ...`.

columns       the checkpoints that stand side by side
limits        what a visitor may ask for, checked on the server
jobs          work that reports as it goes and can be stopped
asking        one checkpoint draws or answers, others wait
scores        rewards of what was made
grid          rows and columns of what was made, with their differences
ballots       two anonymous answers, and where votes about them are kept
serving       the server: loopback, no file but its own, nothing asked of anybody else

Files whose name begins with `tab_` wire one tab in Gradio; nothing else here imports it but `app` and `serving`.
"""
