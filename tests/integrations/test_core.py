"""The core knows no adapter, not even by a string that importlib could take. A message may name one."""

import ast
import re
from pathlib import Path

import ausam

ROOT = Path(ausam.__file__).parent
CORE = ("optimizer", "sampler", "methods", "policies", "common")
MODULE = re.compile(r"(ausam)?\.?integrations(\.\w+)*")


def names(tree):
    """Modules that are imported, and strings that are nothing but the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_core_imports_no_adapter():
    paths = [path for folder in CORE for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 50
    assert [p for p in paths if any(MODULE.fullmatch(name) for name in names(ast.parse(p.read_text())))] == []


def test_a_string_that_importlib_could_take_is_noticed():
    seen = list(names(ast.parse('importlib.import_module("ausam.integrations.lightning").attach(opt)')))
    assert any(MODULE.fullmatch(name) for name in seen)
