"""The classes of errors, against the kinds of the other programs of Moraine."""

import pathlib
import re

from moraine import errors

KINDS = pathlib.Path(__file__).parents[2] / "error.go"


def test_each_kind_has_a_class():
    table = re.search(r"var kindNames = \[kinds\]string\{(.*?)\n\}", KINDS.read_text(), re.S)
    kinds = re.findall(r'"([^"]+)"', table[1])
    assert kinds[0] == errors.MoraineError.kind and len(kinds) > 30
    classes = {cls.kind: cls for cls in errors.MoraineError.__subclasses__()}
    assert sorted(classes) == sorted(kinds[1:])
    for kind, cls in classes.items():
        assert type(errors.of(kind, "text")) is cls
    later = errors.of("a kind of a later version", "text")
    assert type(later) is errors.MoraineError and later.kind == "a kind of a later version"
