"""The study of DCO-KRON's cost runs, and its table shows what it measured."""

from benchmarks.__main__ import main
from benchmarks.commands.tables import make_table
from benchmarks.runs.kept import read_measurements


def test_both_networks_are_measured(tmp_path):
    out = tmp_path / "kron-speed.csv.xz"
    assert main(["kron-speed", "--quick", "--out", str(out)]) == 0
    frame, _ = read_measurements(out)
    assert frame["network"].tolist() == ["MLP-256", "ConvNet"]
    assert (frame["ratio"] > 0).all()
    # Two factors per layer.
    mlp = 784**2 + 3 * 256**2 + 3 * 256**2 + 10**2
    assert frame["memory_mb"][0] == 4 * mlp / 1e6
    table = make_table(["kron-speed"], tmp_path).splitlines()
    assert table[2].startswith("| MLP-256 |")
    assert f"| {frame['ratio'][1]:.2f} |" in table[3]
