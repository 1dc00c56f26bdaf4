"""Deterministic simulation of the whole core. Start reading at ``history``."""
