"""A pytest plugin: ``compat.SAM`` in place of pytorch_optimizer's SAM, in pytorch_optimizer's own tests."""

from __future__ import annotations

from typing import Any

import pytorch_optimizer

from ausam import compat


class SAM(compat.SAM):
    """``compat.SAM``, without the settings that only pytorch_optimizer's has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in ("foreach", "use_gc", "num_data"):
            kwargs.pop(name, None)
        super().__init__(*args, **kwargs)


pytorch_optimizer.SAM = SAM
