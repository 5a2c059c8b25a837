import json

from benchmarks.__main__ import main


def test_memory_is_constant_for_dco_comp_and_grows_for_dco(tmp_path):
    out = tmp_path / "speed.json"
    sizes = ["--k", "24", "--few", "2", "--many", "6", "--repeats", "1"]
    assert main(["compression-speed", *sizes, "--out", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert figures["dco"]["bytes_ratio"] == 3
    assert figures["dco_comp"]["bytes_ratio"] < 1.02  # the targets: at most k numbers per task
    assert figures["dco_comp"]["time_ratio"] > 0
    assert figures["versions"]["torch"]
