"""The live page: nodes, locks and runs as they happen."""
