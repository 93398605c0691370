"""Every public name has an example in its docstring, which pytest runs."""

import inspect

import pytest

import aft_models.layers
import shiftbench
import shiftbench.shifts

PUBLIC = [
    (module, name)
    for module in (shiftbench, shiftbench.shifts, aft_models.layers)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name)) or inspect.isclass(getattr(module, name))
]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_public_name_has_an_example(module: object, name: str) -> None:
    entry = getattr(module, name)
    written = inspect.getdoc(entry) or ""
    if inspect.isclass(entry):
        members = [m for k, m in vars(entry).items() if not k.startswith("_") and callable(m)]
        written += "".join(inspect.getdoc(member) or "" for member in members)
    if getattr(entry, "_is_protocol", False) or issubclass_of_error(entry):
        return  # a protocol or an error: nothing to call
    assert ">>>" in written, f"{name} has no example in its docstring"


def issubclass_of_error(entry: object) -> bool:
    return inspect.isclass(entry) and issubclass(entry, Exception)
