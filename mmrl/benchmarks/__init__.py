"""Benchmarks: the protocol (a YAML file), the reader of its public files, and the metrics of its results.

    protocol  `ProtocolConfig`, a file of configs/evaluation/ or any other path
    readers   one module for each format of public files; `records`: helpers of readers
    metrics   numbers over all answers, which can be resampled

A new benchmark is a YAML file and a reader, here or in another package or file: docs/protocols.md.
"""
