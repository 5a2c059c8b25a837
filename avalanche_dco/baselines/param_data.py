"""Avalanche's ``ParamData``, which its regularisers keep per parameter, as plain tensors."""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from avalanche.training.utils import ParamData
from torch import Tensor

from avalanche_dco.core.checked import is_count, is_floating, require
from avalanche_dco.plugins.support.kept import Form, Shapes, Tensors, is_parameter


def as_param_data(tensors: Mapping[str, Tensor]) -> dict[str, ParamData]:
    """One for each tensor, on its device."""
    return {
        name: ParamData(name, value.shape, init_tensor=value, device=value.device)
        for name, value in tensors.items()
    }


class _Table(Tensors):
    """``ParamData`` by parameter name."""

    def plain(self, value: Mapping[str, ParamData]) -> dict[str, Tensor]:
        return {name: entry.data for name, entry in value.items()}

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[str, ParamData]:
        return as_param_data(super().read(plain, what, shapes))


class _WholeTable(_Table):
    """The same for all parameters of the model."""

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[str, ParamData]:
        table = super().read(plain, what, shapes)
        require(table.keys() == shapes.keys(), f"{what} does not have all parameters")
        return table


class _TablesByExperience(Form):
    def plain(self, value: Mapping[int, Mapping[str, ParamData]]) -> dict[int, dict[str, Tensor]]:
        return {number: TABLE.plain(table) for number, table in value.items() if table}

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[int, dict[str, ParamData]]:
        by_number = isinstance(plain, dict) and all(is_count(number) for number in plain)
        require(by_number, f"{what} has to be a dictionary by numbers of experiences")
        tables = {n: TABLE.read(table, f"{what}[{n}]", shapes) for n, table in plain.items()}
        return defaultdict(dict, tables)


class _FlatTable(_Table):
    """Flattened tensors on the CPU."""

    def read(self, plain: Any, what: str, shapes: Shapes) -> dict[str, ParamData]:
        tensors = Tensors.read(self, plain, what, shapes)
        return as_param_data({name: value.cpu() for name, value in tensors.items()})


TABLE = _Table(is_parameter)
"""``ParamData`` by parameter name."""
WHOLE_TABLE = _WholeTable(is_parameter)
"""The same, for every parameter of the model."""
FLAT_TABLE = _FlatTable(
    lambda value, name, shapes: name in shapes and is_floating(value, [math.prod(shapes[name])])
)
"""The same, flattened and on the CPU."""
TABLES_BY_EXPERIENCE = _TablesByExperience()
"""Tables by the number of an experience."""
