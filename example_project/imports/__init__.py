"""The nightly import, which must never overlap with itself."""
