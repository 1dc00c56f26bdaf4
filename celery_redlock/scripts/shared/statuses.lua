-- First item of a reply. The same numbers as in scripts/__init__.py.
local GRANTED, TAKEN, FREE, QUARANTINED, UNSYNCED, MISCONFIGURED, EVICTS = 1, 2, 3, 4, 5, 6, 7
