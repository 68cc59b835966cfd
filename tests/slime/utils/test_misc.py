"""Loading plug-ins by name."""

import math

import pytest

from slime.utils.misc import load_function


def test_a_dotted_path_is_the_object_it_names() -> None:
    assert load_function("math.sqrt") is math.sqrt
    assert load_function("slime.utils.misc.load_function") is load_function


@pytest.mark.parametrize(
    ("path", "error"),
    [("sqrt", ValueError), ("math.sqroot", AttributeError), ("no_such_module.f", ImportError), ("", ValueError)],
)
def test_a_path_that_names_nothing_raises(path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load_function(path)
