"""The live page: the present state of nodes, locks and runs."""
