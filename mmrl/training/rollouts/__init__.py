"""Experience sources: the rollouts of an iteration, from prompts to micro-batches. See docs/samplers.md.

    online                 sample groups, score them, estimate advantages, cut into micro-batches
    collect                the collector, and the sampler of groups of a fixed size
    group_sampling         samplers that resample groups without variance (DAPO) or hard prompts (Reinforce-Ada)
    advantage_estimator    from rewards to advantages
    difficulty             weights of groups by their success rate (VL-Cogito, Observe-R1)
    demonstrations         demonstrations among the policy's own answers (LUFFY, EasyVideoR1)
    replay_buffer          past answers that are trained on again (VL-Rethinker, ARPO)
    prompt_history         advantages relative to the earlier rewards of a prompt (DDPO)
    lagrangian             rewards that must stay above a threshold (MVC-ZigAL)
    importance_correction  truncated importance sampling for other rollout engines
    offline                demonstrations and preference pairs of a data set
    row_selection          the best answer of a group, or pairs of best and worst
    stages                 one source after another
    reward_metrics         what an iteration logs
    validate_sampling      settings that cannot work together

The prompts come from `mmrl.data.prompts` and `mmrl.data.prompts` (MMR1).
"""
