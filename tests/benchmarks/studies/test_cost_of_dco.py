"""The study of error against cost, on the digits instead of MNIST."""

import pandas as pd
import pytest
import torch

from avalanche_dco import DCOPlugin
from avalanche_dco.core.directions import Directions
from benchmarks.report.study_tables import against_naive, cost_of_dco
from benchmarks.runs.kept import study_path, write_measurements
from benchmarks.runs.training import Training
from benchmarks.studies.cost_of_dco import measured, plot
from benchmarks.studies.dco_variants import VARIANTS, EigenDCO, FactoredDCO, InBlocks, StaleGram

TRAINING = Training(epochs=1, batch_size=64, lr=0.01, weight_decay=0.0, experiences=2)


@pytest.mark.parametrize(
    "name",
    [
        "naive",
        "default",
        "eigen",
        "factored",
        "factored-stale",
        "factored-blocks",
        "sampled-factored",
        "comp",
        "comp-trained",
        "paper",
    ],
)
def test_a_variant_is_measured(name, monkeypatch):
    monkeypatch.setattr(FactoredDCO, "updates", 2)
    monkeypatch.setattr(InBlocks, "blocks", 2)
    few = {"k": 6, "autoencoder_updates": 2, "gradients_per_update": 2, "push_epochs": 1}
    published = DCOPlugin.published("permuted-digits")
    monkeypatch.setattr(DCOPlugin, "published", lambda benchmark: published | few)
    for variant in VARIANTS.values():
        monkeypatch.setitem(variant.settings, "k", 6)
        if "autoencoder_updates" in variant.settings:
            monkeypatch.setitem(variant.settings, "autoencoder_updates", 2)
    found = measured("permuted-digits", name, 1, TRAINING, None)
    assert 0 < found["average"] <= 100
    assert found["average"] == pytest.approx(found["fwi"] + found["bwt"])
    assert found["seconds"] > 0


def test_closed_form_directions_are_orthogonal(monkeypatch):
    kept = []

    class Kept(EigenDCO):
        def _stored(self, strategy, directions, *args):
            kept.append(directions)
            return super()._stored(strategy, directions, *args)

    monkeypatch.setitem(VARIANTS, "kept", VARIANTS["eigen"].__class__("", {"k": 6}, Kept))
    measured("permuted-digits", "kept", 1, TRAINING, None)
    for name in kept[0].factors:
        gram = kept[0].of_parameter(name).gram()
        off = gram - gram.diag().diag()
        assert off.abs().max() < 1e-3 * gram.diagonal().max()


def test_times_are_over_naives_of_the_same_seed_and_means_over_seeds(tmp_path):
    rows = [
        {"benchmark": "split-mnist", "variant": variant, "seed": seed, "what": variant.title(),
         "average": error, "fwi": error, "bwt": 0.0, "seconds": seconds}
        for variant, seed, error, seconds in (
            ("naive", 1, 10.0, 1.0), ("naive", 2, 12.0, 2.0),
            ("default", 1, 1.0, 3.0), ("default", 2, 2.0, 10.0),
        )
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    ratios = against_naive(frame)["ratio"].tolist()
    assert ratios == [1.0, 4.0]
    write_measurements(study_path("cost-of-dco", tmp_path), frame, {})
    shown = cost_of_dco(tmp_path, ["split-mnist"])
    assert shown.rows[1] == {
        "what is changed": "Default",
        "average error %": "1.50",
        "less the default's": "+0.00",
        "BWT %": "0.00",
        "time over Naive's": "4.0",
        "seeds": "2",
    }
    assert shown.rows[0]["less the default's"] == "+9.50"
    assert named(plot(frame)) == ["1: Default", "21: the paper's setting (test data)"]
    paper = frame[-2:].assign(variant="paper", what="the paper's setting")
    assert named(plot(pd.concat([frame, paper]))) == ["1: Default", "21: the paper's setting"]


def named(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


class TestFactoredUpdates:
    def test_they_lose_less_of_the_gradients_than_where_they_started(self):
        torch.manual_seed(0)
        like = {"w": torch.zeros(5, 4, dtype=torch.float64)}
        start, gradients = Directions.random(like, 4), Directions.random(like, 12)
        before = lost(start, gradients)
        FactoredDCO(k=4)._fit(start, gradients)
        assert lost(start, gradients) < 0.7 * before

    def test_a_gram_matrix_for_every_update_is_the_plain_fit(self, monkeypatch):
        like = {"w": torch.zeros(5, 4, dtype=torch.float64)}
        gradients = Directions.random(like, 12)
        fitted = []
        for plugin in (FactoredDCO(k=4), StaleGram(k=4)):
            monkeypatch.setattr(StaleGram, "gram_every", 1)
            torch.manual_seed(0)
            fitted.append(Directions.random(like, 4))
            plugin._fit(fitted[-1], gradients)
        assert torch.equal(fitted[0].gram(), fitted[1].gram())


def lost(directions, gradients):
    """The share of the gradients' energy that the directions do not reconstruct."""
    C = directions.cross(gradients)
    energy = gradients.gram().diagonal().sum()
    return float(1 + ((directions.gram() @ C - 2 * C) * C).sum() / energy)
