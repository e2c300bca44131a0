"""What an iteration trains on, in small parts that go together: docs/samplers.md.

    drawing           draws what is asked for and scores it
    draws             which rows of what was drawn count: all of them
    dynamic           groups without variance are dropped and others drawn (DAPO)
    adaptive          a prompt is drawn until it has enough good and bad answers (Reinforce-Ada)
    difficulty        weights of groups by their success rate (VL-Cogito, Observe-R1)
    mixed             demonstrations among the policy's own answers (LUFFY, EasyVideoR1)
    transcripts       answers that outlive their iteration, and checkpoints
    selective_replay  past answers in the place of groups that say nothing (VL-Rethinker)
    success_replay    a past success in a group that failed (ARPO)
    misfits           what cannot work together

Which prompts come is `mmrl.data.prompts` and `mmrl.data.variance_aware` (MMR1).
"""
