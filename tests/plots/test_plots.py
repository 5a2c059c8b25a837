"""The figures show the numbers of the frame."""

from io import BytesIO
from typing import Any

import matplotlib.colors
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from avalanche_dco.errors import SettingError
from avalanche_dco.logging import PandasLogger
from avalanche_dco.plots import (
    PALETTE,
    draw_error_matrix,
    plot_average_error,
    plot_capacity,
    plot_error_matrix,
    plot_fwi_bwt,
)

E = np.array([[0.10, 0.90, 0.80], [0.30, 0.20, 0.85], [0.50, 0.40, 0.15]])


def run_frame(e: np.ndarray = E, **columns: Any) -> pd.DataFrame:
    """The rows that a run with error matrix e logs, evaluated twice after every training."""
    rows: list[dict[str, Any]] = []
    for i in range(len(e)):
        seen = range(i + 1)
        values = {
            "AverageError": np.mean([e[i, j] for j in seen]),
            "FWIError": np.mean([e[j, j] for j in seen]),
            "BWTError": np.mean([e[i, j] - e[j, j] for j in seen]),
        }
        shared = {"stream": "test", "phase": "eval", "trained": i + 1, "training_experience": i}
        for factor in (0.5, 1.0):  # only the later evaluation counts
            for metric, value in values.items():
                rows.append({**shared, "metric": metric, "value": factor * value})
            for j in range(e.shape[1]):
                cell = {"metric": "ErrorMatrix", "experience": j, "value": factor * e[i, j]}
                rows.append({**shared, **cell})
        rows.append({**shared, "metric": "ErrorMatrix", "experience": None, "value": np.nan})
        rows.append({**shared, "stream": "train", "metric": "AverageError", "value": 0.0})
    frame = pd.DataFrame(rows)
    frame["experience"] = frame["experience"].astype("Int64")
    frame["training_experience"] = frame["training_experience"].astype("Int64")
    return frame.assign(**columns)


def capacity_frame() -> pd.DataFrame:
    logger = PandasLogger()
    for experience in range(3):
        logger._progress.step = experience + 1
        place = f"train_phase/train_stream/Task000/Exp{experience:03}"
        logger.log_single_metric(f"CapacityStart/{place}", 0.1 * experience, 0)
        logger.log_single_metric(f"CapacityEnd/{place}", 0.2 * experience, 0)
        logger.log_single_metric(f"DirectionMemory/{place}", 2**20 * (experience + 1), 0)
    return logger.to_frame()


COMPARISON = pd.concat(
    [
        run_frame(E, method="Naive", seed=0),
        run_frame(E + 0.1, method="Naive", seed=1),
        run_frame(E / 2, method="DCO", seed=0),
        run_frame(E / 2 + 0.01, method="DCO", seed=1),
    ]
)


def check_drawable(figure: Figure) -> None:
    """It has labelled axes, draws, and is unknown to pyplot."""
    assert isinstance(figure, Figure)
    for axes in figure.axes:
        assert axes.get_ylabel()
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    assert np.asarray(Image.open(buffer)).std() > 0
    assert plt.get_fignums() == []


def test_average_error_of_one_run() -> None:
    figure = plot_average_error(run_frame())
    (line,) = figure.axes[0].lines
    assert list(line.get_xdata()) == [1, 2, 3]
    np.testing.assert_allclose(line.get_ydata(), [10, 25, 35])
    assert figure.axes[0].get_ylabel() == "Average error (%)"
    assert figure.axes[0].get_legend() is None
    check_drawable(figure)


def test_average_error_of_several_methods_and_seeds() -> None:
    joint = run_frame(E[:1] * 0 + 0.02, method="Joint", seed=0)
    figure = plot_average_error(pd.concat([COMPARISON, joint]))
    naive, dco, level = figure.axes[0].lines
    np.testing.assert_allclose(naive.get_ydata(), [15, 30, 40])
    np.testing.assert_allclose(dco.get_ydata(), [5.5, 13, 18])
    np.testing.assert_allclose(level.get_ydata(), [2, 2])
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "Naive",
        "DCO",
        "Joint (once)",
    ]
    band = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(40 + 100 * np.std([0.35, 0.45], ddof=1))
    check_drawable(figure)


def test_another_stream_can_be_drawn() -> None:
    (line,) = plot_average_error(run_frame(), stream="train").axes[0].lines
    assert list(line.get_ydata()) == [0, 0, 0]


def test_fwi_and_bwt_bars() -> None:
    figure = plot_fwi_bwt(COMPARISON)
    heights = [patch.get_height() for patch in figure.axes[0].patches]
    np.testing.assert_allclose(heights, [20, 8, 20, 10])
    labels = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert labels == ["Naive", "DCO"]
    check_drawable(figure)
    single = plot_fwi_bwt(run_frame())
    np.testing.assert_allclose([p.get_height() for p in single.axes[0].patches], [15, 20])
    check_drawable(single)


def test_error_matrix_of_one_run() -> None:
    figure = plot_error_matrix(run_frame())
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), 100 * E)
    framed = {p.get_xy() for p in axes.patches if isinstance(p, Rectangle)}
    assert framed == {(j - 0.5, j - 0.5) for j in range(3)}
    assert [text.get_text() for text in axes.texts][:3] == ["10.0", "90.0", "80.0"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "1 (exp 0)",
        "2 (exp 1)",
        "3 (exp 2)",
    ]
    check_drawable(figure)


def test_error_matrix_of_several_methods_is_the_mean_over_seeds() -> None:
    figure = plot_error_matrix(COMPARISON)
    naive, dco, _ = figure.axes
    np.testing.assert_allclose(naive.images[0].get_array(), 100 * E + 5)
    np.testing.assert_allclose(dco.images[0].get_array(), 50 * E + 0.5)
    assert (naive.get_title(), dco.get_title()) == ("Naive", "DCO")
    check_drawable(figure)


def test_many_methods_take_several_rows_and_change_lines() -> None:
    many = pd.concat([run_frame(method=f"method {number}") for number in range(9)])
    lines = plot_average_error(many).axes[0].lines
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == 9
    check_drawable(plot_error_matrix(many))


def test_a_matrix_with_holes_and_a_large_one() -> None:
    holes = np.array([[0.1, np.nan], [np.nan, 0.2]])
    figure = draw_error_matrix(holes, {1: 0, 0: 1})
    assert [text.get_text() for text in figure.axes[0].texts] == ["10.0", "–", "–", "20.0"]
    check_drawable(figure)
    large = draw_error_matrix(np.full((30, 30), 0.5), {})
    assert not large.axes[0].texts
    check_drawable(large)


def test_capacity() -> None:
    figure = plot_capacity(capacity_frame())
    share, memory = figure.axes
    start, end = share.lines
    np.testing.assert_allclose(start.get_ydata(), [0, 0.1, 0.2])
    np.testing.assert_allclose(end.get_ydata(), [0, 0.2, 0.4])
    np.testing.assert_allclose(memory.lines[0].get_ydata(), [1, 2, 3])
    assert list(memory.lines[0].get_xdata()) == [1, 2, 3]
    assert [text.get_text() for text in share.get_legend().get_texts()] == ["start", "end"]
    assert "MiB" in memory.get_ylabel()
    check_drawable(figure)
    compared = plot_capacity(
        pd.concat([capacity_frame().assign(method=name) for name in ("DCO", "DCO-COMP")])
    )
    assert [text.get_text() for text in compared.axes[0].get_legend().get_texts()] == [
        "DCO, start",
        "DCO-COMP, start",
        "DCO, end",
        "DCO-COMP, end",
    ]
    check_drawable(compared)


def many_methods(count: int, **columns: Any) -> pd.DataFrame:
    return pd.concat([run_frame(E, method=f"Method {i}", **columns) for i in range(count)])


def test_many_methods_are_explained_below_the_figure_and_not_shaded() -> None:
    few, many = plot_average_error(many_methods(3)), plot_average_error(many_methods(10))
    assert few.legends == []
    assert len(few.axes[0].collections) == 3
    (legend,) = many.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"Method {i}" for i in range(10)]
    assert many.axes[0].get_legend() is None
    assert len(many.axes[0].collections) == 0
    assert many.get_figheight() > few.get_figheight()
    check_drawable(many)


def test_bars_lie_where_names_would_not_fit() -> None:
    figure = plot_fwi_bwt(many_methods(10))
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()][:2] == ["Method 0", "Method 1"]
    assert axes.yaxis_inverted()
    np.testing.assert_allclose([bar.get_width() for bar in axes.containers[0]], 15)
    np.testing.assert_allclose([bar.get_width() for bar in axes.containers[-1]], 20)
    check_drawable(figure)
    long = pd.concat([run_frame(E, method=name * 45) for name in "ab"])
    assert plot_fwi_bwt(long).axes[0].get_xlabel() == "Final error (%)"
    assert plot_fwi_bwt(long, width=40).axes[0].get_ylabel() == "Final error (%)"


def test_one_training_has_one_tick_and_low_errors_are_not_cut_off() -> None:
    (axes,) = plot_average_error(run_frame(np.array([[0.25]]))).axes
    visible = [tick for tick in axes.get_xticks() if 0.5 <= tick <= 1.5]
    assert visible == [1]
    assert axes.get_ylim() == (0, pytest.approx(26.5))
    (axes,) = plot_average_error(run_frame(np.zeros((2, 2)))).axes
    assert axes.get_ylim()[1] > 0


def test_black_follows_the_colour_of_text() -> None:
    with matplotlib.rc_context({"text.color": "#abcdef"}):
        lines = plot_average_error(many_methods(8)).axes[0].lines
    black = PALETTE.index("#000000")
    assert lines[black].get_color() == "#abcdef"
    assert lines[0].get_color() == PALETTE[0]


def test_frames_that_lack_something_are_refused() -> None:
    with pytest.raises(SettingError, match=r"to_frame\(\)"):
        plot_average_error(pd.DataFrame({"a": [1]}))
    with pytest.raises(SettingError, match=r"no columns \['training_experience'\]"):
        plot_error_matrix(run_frame().drop(columns="training_experience"))
    with pytest.raises(SettingError, match="no AverageError of the valid stream"):
        plot_average_error(run_frame(), stream="valid")
    with pytest.raises(SettingError, match="no CapacityStart"):
        plot_capacity(run_frame())
    untrained = run_frame().assign(trained=0)
    with pytest.raises(SettingError, match=r"after strategy\.train"):
        plot_error_matrix(untrained)


def test_the_palette_is_okabe_and_ito_s() -> None:
    assert len(set(PALETTE)) == 8
    # Lightness alone tells most of the colours apart, also printed in grey.
    lightness = [np.dot([0.2126, 0.7152, 0.0722], matplotlib.colors.to_rgb(c)) for c in PALETTE]
    assert len(set(np.round(lightness, 3))) == 8
