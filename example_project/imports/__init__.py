"""The nightly import, of which only one may run at a time."""
