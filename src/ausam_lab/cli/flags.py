"""A parser whose errors are one line, with a hint for a misspelt flag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NoReturn

from ausam_lab.cli import exits
from ausam_lab.names.lookup import nearest

# What other programs call our flags; the spelling is too different to guess.
SYNONYMS = {
    "--learning-rate": "--lr",
    "--wd": "--weight-decay",
    "--optimizer": "--base",
    "--network": "--model",
    "--noise": "--label-noise",
    "--gpu": "--device",
}


class Parser(argparse.ArgumentParser):
    """Refuses in one line what it does not know. No flag may be abbreviated: --seed would become --seeds."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, allow_abbrev=False)
        self.elsewhere: Mapping[str, str] = {}  # flags of other commands, and what to do instead
        self._mixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Flags may stand between the names of a command: compare sgd --epochs 5 sam. The rest is refused."""
        if self._mixing:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:
            known, rest = super().parse_known_args(args, namespace)
        else:
            self._mixing = True  # argparse takes the flags first and then the names, each time through this method
            try:
                known, rest = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._mixing = False
        if rest:
            self.error(self._unknown(rest))
        return known, rest

    def error(self, message: str) -> NoReturn:
        """One line without the usage, which would hide it."""
        whole = message if message.endswith((".", "?")) else f"{message}."
        self.exit(exits.MISUSE, f"ausam: {whole} See {self.prog} --help.\n")

    def _unknown(self, rest: list[str]) -> str:
        flags = [text.partition("=")[0] for text in rest if text.startswith("-")]
        if not flags:
            return f"{' '.join(rest)}: too many arguments"
        flag = flags[0]
        if flag in self.elsewhere:
            return f"{flag}: {self.elsewhere[flag]}"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        plain = flag.lower().replace("_", "-")
        other = SYNONYMS.get(plain, "")
        near = other if other in known else nearest(plain, known)
        return f"There is no flag {flag}." + (f" Did you mean {near}?" if near else "")
