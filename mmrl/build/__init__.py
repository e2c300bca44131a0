"""The composition root: a configuration becomes policies, data sets, rewards, objectives and experience sources."""
