"""Experience sources: the rollouts of an iteration, from prompts to micro-batches. See docs/samplers.md.

`online` samples groups (`collect`, `group_sampling`), estimates advantages and cuts micro-batches; `offline` reads the
answers of a data set; `row_selection` and `stages` select rows of another source and put sources one after another.
"""
