"""Loading of recipes: YAML, overrides, the schema of keys, and renamed keys."""
