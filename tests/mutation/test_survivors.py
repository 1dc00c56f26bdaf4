"""The list of explained survivors, compared with the source and with the figures."""

from __future__ import annotations

import json

import pytest

from tests.mutation.modules import MODULES, ROOT
from tests.mutation.run import FIGURES, code_of, fingerprint, function_of
from tests.mutation.survivors import Survivor, explained, functions_of

LIST = explained()
WANTED = 0.95  # of the mutants of a module
FOUND = json.loads(FIGURES.read_text("utf-8"))


@pytest.mark.parametrize("module", sorted({one.module for one in LIST}))
def test_explained_survivors_are_changes_of_the_present_source(module: str) -> None:
    """An entry whose function is another one by now explains nothing."""
    functions = functions_of(MODULES[module].source)

    assert [
        one.change
        for one in LIST
        if one.module == module and not is_change_of(functions, one)
    ] == []


def is_change_of(functions: dict[str, str], survivor: Survivor) -> bool:
    """Tell whether a function has each line that the change takes out."""
    change = survivor.change
    lines = functions.get(change.function, "").splitlines()
    old = change.old.splitlines()
    return change.old != change.new and bool(old) and all(x in lines for x in old)


def test_explained_survivor_is_noticed_when_its_function_changes() -> None:
    """The line is looked for in the function that the entry names, and only there."""
    source = "class A:\n    def f(self):\n        return 1\n\ndef g():\n    return 2\n"
    functions = functions_of(source)

    assert functions == {"A.f": "def f(self):\nreturn 1", "g": "def g():\nreturn 2"}


def test_names_of_mutants_lead_to_functions() -> None:
    """As mutmut writes them, with the name of the class or without."""
    assert function_of("a.b.x_run__mutmut_3") == "run"
    assert function_of("a.b.x__run__mutmut_12") == "_run"
    assert function_of("a.b.xǁBallotǁ__repr____mutmut_1") == "Ballot.__repr__"


def test_each_survivor_is_explained_once() -> None:
    """A reason has words, and no change stands twice in the list."""
    changes = [(one.module, one.change) for one in LIST]

    assert len(changes) == len(set(changes))
    assert [one for one in LIST if not one.why] == []


@pytest.mark.parametrize("module", MODULES)
def test_figures_are_those_of_the_present_source(module: str) -> None:
    """`make mutation ARGS=<module>` has to be run again after a change of its code."""
    figures = FOUND[module]

    assert figures["source"] == fingerprint(MODULES[module])


@pytest.mark.parametrize("module", MODULES)
def test_each_survivor_is_in_the_list(module: str) -> None:
    """And at least 95 of 100 mutants are killed."""
    figures = FOUND[module]
    killed = figures["killed"] + figures["timeouts"]

    assert figures["survived"] == figures["explained"]
    assert figures["explained"] >= len({one.change for one in of(module)})
    assert figures["mutants"] == killed + figures["survived"]
    assert killed >= WANTED * figures["mutants"]


def of(module: str) -> list[Survivor]:
    """Return the explained survivors of a module."""
    return [one for one in LIST if one.module == module]


def test_fingerprint_is_of_the_code_alone() -> None:
    """A change of comments or docstrings alone does not change it."""
    source = '''"""A module."""
x = "# no comment"  # a comment


def f(y):
    """Two
    lines."""
    # alone
    return y
'''

    assert code_of(source) == ['x = "# no comment"', "def f(y):", "    return y"]


@pytest.mark.parametrize("name", MODULES)
def test_tests_that_judge_a_module_exist(name: str) -> None:
    """A folder or a file that was renamed would leave every mutant alive."""
    module = MODULES[name]

    assert (ROOT / module.path).is_file()
    assert [
        path for path in (*module.fast, *module.slow) if not (ROOT / path).exists()
    ] == []
