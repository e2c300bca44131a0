"""Episodes of several turns for people to look at: kept by evaluations, shown by reports and by the demo.

episode_view    an episode as people look at it: pictures, texts, rewards, within limits
action_marks    points and boxes that actions name, drawn on the pictures that the policy saw
episode_files   episodes in a run folder
episode_html    episodes of several models side by side, turn by turn
"""
