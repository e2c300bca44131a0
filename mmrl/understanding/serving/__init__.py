"""Rollouts of a vision-language model by `vllm serve` over HTTP, with proof of the weights before learning.

    served_engine      `ServedEngine`, a `RolloutEngine`: gives servers the weights, proves them, asks for answers
    group_dealing      the requests of a rollout over several servers: health, repetitions, lost servers
    group_board        the groups of a rollout, each answered exactly once
    generate_messages  the request for a group of answers, and the checks of its reply
    interrupted_answers  answers that servers wrote under several versions, and the check of their last tokens
    weight_proof       the comparison of log-probabilities between server, trainer and base model
    weight_routes      the ways of weights to a server: adapter folders, weight folders, vLLM's transfer
    weight_versions    names and folders of versions
    nccl_sender        the trainer's end of vLLM's NCCL transfer (never run)
    vllm_client        the HTTP routes of vLLM 0.33
    server_failure     the ways in which a request fails
    server_list        the servers that may be used at this moment: fixed, or named by a file
    server_status      which servers answer, for people

See docs/served-rollouts.md for the commands.
"""
