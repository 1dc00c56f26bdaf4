"""Mutation tests of the lock: do tests notice a change of the code?

`mutmut <https://mutmut.readthedocs.io>`_ makes one small change at a time (a mutant)
and runs the tests that execute the changed function. A mutant that no test notices
survives. Every survivor is killed by a better test, or explained in ``survivors.yaml``.

Read ``modules`` (which tests judge which module), ``survivors`` (the list), ``run``.
``figures.json`` has the results of the last run of each module.

mutmut changes the bodies of functions without a decorator, so no properties. It changes
neither constants of a module nor the Lua scripts. What the scripts do, the contract
suite says, on servers and in this process; bugs that are planted into their text show
that the simulator sees them.
"""
