"""Whatever a metric emits, its row is kept and the log stays readable."""

import json
import math
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from avalanche_dco.logging import PandasLogger, read_log

NAN, INF = math.nan, math.inf


def logged(path: Path | None, *rows: tuple[str, Any, Any]) -> pd.DataFrame:
    logger = PandasLogger(path)
    for name, value, x in rows:
        logger.log_single_metric(name, value, x)
    return logger.to_frame()


def same(one: float, other: float | None) -> bool:
    return bool(pd.isna(one)) if other is None or math.isnan(other) else one == other


@pytest.mark.parametrize(
    ("x", "kept"),
    [
        (3, 3),
        (True, 1),
        (np.int32(3), 3),
        (3.0, 3),
        (2**63 - 1, 2**63 - 1),
        (-(2**63), -(2**63)),
        (torch.tensor(3), 3),
        (torch.tensor([3.0], dtype=torch.bfloat16), 3),
        (np.array(2**53 + 1), 2**53 + 1),
        (NAN, None),
        (torch.tensor(NAN), None),
        (None, None),
        (0.5, 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
        (np.float16(0.5), 0.5),
        (Fraction(1, 2), 0.5),
        (INF, INF),
        (2**63, 2.0**63),
        (10**30, 1e30),
    ],
)
def test_every_x_is_kept(tmp_path: Path, x: Any, kept: float | None) -> None:
    with warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):
            warnings.simplefilter("error", category)
        frame = logged(tmp_path / "run.csv", ("a", 1.0, 7), ("b", 2.0, x), ("c", 3.0, 2**40))
    assert frame["value"].tolist() == [1.0, 2.0, 3.0]
    assert frame["x"].tolist()[::2] == [7, 2**40]
    assert same(frame["x"][1], kept)
    assert str(frame["x"].dtype) == ("float64" if isinstance(kept, float) else "Int64")


@pytest.mark.parametrize(
    "x",
    [10**400, pytest.param(-(10**5000), id="5000 digits"), "3", 1j, torch.zeros(2), object()],
)
def test_an_x_that_is_no_number_is_empty_with_a_warning(tmp_path: Path, x: Any) -> None:
    with pytest.warns(UserWarning, match="'b' has an x position of type .* stays empty"):
        frame = logged(tmp_path / "run.csv", ("a", 1.0, 7), ("b", 2.0, x))
    assert frame["value"].tolist() == [1.0, 2.0]
    assert frame["x"].tolist() == [7, pd.NA]


@pytest.mark.parametrize(
    ("value", "number", "other"),
    [
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5, None),
        (torch.tensor([1.5, NAN], dtype=torch.bfloat16), None, [1.5, None]),
        (torch.tensor(1.5, dtype=torch.float8_e4m3fn), 1.5, None),
        (torch.tensor(0.25, requires_grad=True), 0.25, None),
        (torch.eye(2).to_sparse(), None, [[1, 0], [0, 1]]),
        (torch.tensor([4.0]).to_sparse(), 4.0, None),
        (torch.zeros(2, device="meta"), None, {"type": "Tensor"}),
        (1 + 2j, None, "(1+2j)"),
        (np.complex64(1 + 2j), None, "(1+2j)"),
        (torch.tensor(1 + 2j).conj(), None, "(1-2j)"),
        (torch.tensor([1 + 2j, 3]), None, ["(1+2j)", "(3+0j)"]),
        (10**400, None, 10**400),
        pytest.param(-(10**5000), None, hex(-(10**5000)), id="5000 digits"),
        (2**53, 2.0**53, None),
        (2**53 + 1, 2.0**53, 2**53 + 1),
        (np.uint64(2**64 - 1), 2.0**64, 2**64 - 1),
        (Fraction(1, 3), 1 / 3, "1/3"),
        (np.longdouble("1e4000"), None, "1e+4000"),
        (np.array(["text"]), None, "text"),
        (np.array(["a", "b"]), None, ["a", "b"]),
        (
            np.array([None, 10**400, {}], dtype=object),
            None,
            [{"type": "NoneType"}, 10**400, {"type": "dict"}],
        ),
        (np.array([]), None, []),
        ([1, 2.5, NAN], None, [1, 2.5, None]),
        (None, None, {"type": "NoneType"}),
    ],
)
def test_every_value_is_kept(tmp_path: Path, value: Any, number: float | None, other: Any) -> None:
    frame = logged(tmp_path / "run.csv", ("before", 1.0, 0), ("odd", value, 1), ("after", 2.0, 2))
    assert frame["name"].tolist() == ["before", "odd", "after"]
    assert same(frame["value"][1], number)
    assert (None if pd.isna(frame["other"][1]) else json.loads(frame["other"][1])) == other


def test_a_quantized_tensor_is_kept_as_its_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's: they are going to be removed
        quantized = torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 0, torch.qint8)
    assert json.loads(logged(None, ("odd", quantized, 1))["other"][0]) == [1, 2]


def test_numbers_in_a_name_that_no_column_holds_stay_in_the_name(tmp_path: Path) -> None:
    long = "9" * 5000
    frame = logged(tmp_path / "run.csv", (f"M/Task{long}/Exp{2**63}", 1.0, 0), ("M/Task7", 1.0, 0))
    assert frame["metric"].tolist() == [f"M/Task{long}/Exp{2**63}", "M"]
    assert frame["task"].tolist() == [pd.NA, 7]


def test_a_name_that_is_no_unicode_text_is_escaped(tmp_path: Path) -> None:
    assert logged(tmp_path / "run.csv", ("M\ud800", 1.0, 0))["name"].tolist() == ["M\\ud800"]


HUGE = 10**400
NUMBERS = (
    st.booleans()
    | st.integers()
    | st.integers(-HUGE, HUGE)
    | st.floats()
    | st.floats(width=32).map(np.float32)
    | st.fractions()
)
ANYTHING = (
    NUMBERS
    | st.floats().map(torch.tensor)
    | st.floats(width=16).map(lambda x: torch.tensor([x], dtype=torch.bfloat16))
    | st.none()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.complex_numbers().map(torch.tensor)
    | st.lists(st.floats()).map(np.array)
    | st.lists(st.floats()).map(torch.tensor)
    | st.lists(st.floats(width=32)).map(lambda x: torch.tensor(x).to_sparse())
    | st.lists(NUMBERS | st.none() | st.text()).map(lambda x: np.array(x, dtype=object))
)
NAMES = st.text(st.characters(exclude_characters="\r\n"), min_size=1)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(st.lists(st.tuples(NAMES, ANYTHING, ANYTHING), min_size=1, max_size=8))
def test_a_log_stays_readable_whatever_a_metric_does(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, Any, Any]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "run.csv"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* x stays empty")
        frame = logged(path, *rows)
    pd.testing.assert_frame_equal(frame, read_log(path))
    assert len(frame) == len(rows)
    assert frame["name"].tolist() == [
        name.encode(errors="backslashreplace").decode() for name, _, _ in rows
    ]
    for (_, value, x), kept in zip(rows, frame.itertuples(), strict=True):
        assert isinstance(kept.other, float) or json.loads(kept.other) is not None
        if isinstance(value, float):
            assert same(kept.value, value)
        if isinstance(value, int):
            assert (int(kept.value) if pd.isna(kept.other) else json.loads(kept.other)) == value
        if isinstance(x, float) and not -(2**63) <= x < 2**63:
            assert same(kept.x, x)
        if isinstance(x, int) and abs(x) <= 2**53:
            assert kept.x == x
