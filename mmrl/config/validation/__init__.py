"""Cross-field validation: settings that are each valid, and that have no effect or cannot work together.

Each function yields one message for each problem, which begins with the key and ends with the remedy. The algorithm,
its advantage and its policy loss, and the transition state their own constraints (`validation_errors`,
`config_errors`); `checks.validation_errors` gathers them all before a model is loaded.
"""
