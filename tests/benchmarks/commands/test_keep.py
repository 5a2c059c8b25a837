"""Finished runs are kept in one file per study, and nothing else is."""

import json
import shutil
from random import Random

import pandas as pd
import pytest

from avalanche_dco.errors import SettingError
from benchmarks.__main__ import main
from benchmarks.commands.keep import without_progress
from benchmarks.report.reading import read_runs
from benchmarks.runs.choices import read_choices
from benchmarks.runs.kept import Study, read_study, study_path, write_study
from benchmarks.runs.records import DamagedRunError, read_run
from tests.support.benchmark_runs import _in_this_process  # noqa: F401
from tests.support.run_folders import write_run


def keep(tmp_path, *folders, study="group/study"):
    return main(["keep", *map(str, folders), "--study", study, "--results", str(tmp_path / "kept")])


def test_a_study_has_what_the_folders_have(tmp_path, capsys):
    folders = [write_run(tmp_path / "runs" / place, "dco", n) for n, place in enumerate("ab")]
    unfinished = write_run(tmp_path / "runs", "naive", 1)
    (unfinished / "outcome.json").unlink()
    assert keep(tmp_path, tmp_path / "runs") == 0
    assert unfinished.name in capsys.readouterr().out
    written = {path.name for path in (tmp_path / "kept" / "group").iterdir()}
    assert written == {"study.csv.xz"}
    study = read_study(study_path("group/study", tmp_path / "kept"))
    assert list(study.runs) == [folder.name for folder in folders]
    for folder in folders:
        run, kept = read_run(folder), study.runs[folder.name]
        assert (kept.config, kept.outcome) == (run.config, run.outcome)
        assert kept.metrics.equals(run.metrics)


def test_errors_of_single_updates_are_left_out(tmp_path):
    run = read_run(write_run(tmp_path / "runs", "dco", 1))
    progress = run.metrics.head(2).assign(metric=["DCO_AutoencoderError", "DCO_CompressionError"])
    kept = without_progress(pd.concat([progress, run.metrics]))
    assert kept.equals(run.metrics)


def test_runs_are_added_and_those_kept_already_are_recognised(tmp_path, capsys):
    first = write_run(tmp_path / "first", "dco", 1)
    keep(tmp_path, first)
    path = study_path("group/study", tmp_path / "kept")
    before = path.read_bytes()
    assert keep(tmp_path, first) == 0
    assert path.read_bytes() == before
    write_run(tmp_path / "second", "dco", 2)
    capsys.readouterr()
    assert keep(tmp_path, tmp_path / "first", tmp_path / "second") == 0
    assert "1 runs added, 1 were kept already" in capsys.readouterr().out
    assert len(read_study(path).runs) == 2
    assert [run.name.startswith("study/") for run in read_runs(path).runs] == [True, True]


def test_another_outcome_of_a_kept_run_is_refused(tmp_path, capsys):
    folder = write_run(tmp_path / "runs", "dco", 1)
    keep(tmp_path, folder)
    path = study_path("group/study", tmp_path / "kept")
    before = path.read_bytes()
    again = write_run(tmp_path / "again", "dco", 1, outcome={"seconds": 13.0})
    again.rename(again.parent / folder.name)
    assert keep(tmp_path, tmp_path / "again") == 2
    assert f"{folder.name} is in the study with another outcome" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_damaged_run_is_refused(tmp_path, capsys):
    write_run(tmp_path / "runs", "dco", 1)
    damaged = write_run(tmp_path / "runs", "dco", 2)
    text = (damaged / "metrics.csv").read_text()
    (damaged / "metrics.csv").write_text(text.replace("0.5", "0.4"))
    assert keep(tmp_path, tmp_path / "runs") == 2
    assert damaged.name in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()
    assert keep(tmp_path, tmp_path / "nothing") == 2


def test_what_was_chosen_goes_with_the_runs(tmp_path):
    write_run(tmp_path / "runs", "ewc", 1)
    chosen = {"benchmark": "split-digits", "methods": {"ewc": {"settings": {"ewc_lambda": 7}}}}
    (tmp_path / "runs" / "chosen.json").write_text(json.dumps(chosen))
    keep(tmp_path, tmp_path / "runs")
    path = study_path("group/study", tmp_path / "kept")
    assert read_choices(path, "split-digits") == {"ewc": {"ewc_lambda": 7}}


def test_pandas_reads_the_table(tmp_path):
    run = read_run(write_run(tmp_path, "dco", 1))
    path = study_path("study", tmp_path)
    write_study(path, Study({run.name: run}))
    table = pd.read_csv(path, skiprows=1)
    assert table["value"].tolist() == run.metrics["value"].tolist()
    assert set(table["run"]) == {0}


def test_whatever_byte_is_changed_or_cut_the_study_is_not_believed(tmp_path):
    run = read_run(write_run(tmp_path, "dco", 1))
    path = study_path("study", tmp_path)
    write_study(path, Study({run.name: run}))
    whole, random = path.read_bytes(), Random(0)
    cases = [whole[:-1], whole + b"\n", whole + whole, b""]
    for _ in range(40):
        place = random.randrange(len(whole))
        cases += [whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]]
    for content in cases:
        path.write_bytes(content)
        with pytest.raises(DamagedRunError, match=r"study\.csv\.xz: .* Restore the file"):
            read_study(path)
        found = read_runs(path)
        assert found.runs == []
        assert found.problems[0][0] == "study.csv.xz"


def test_a_study_may_have_choices_for_several_benchmarks():
    kept = study_path("table-1-tuning/baselines")
    of_split = read_choices(kept, "split-mnist")
    assert of_split["rwalk"]["ewc_lambda"] == 10
    assert read_choices(kept, "fashion-mnist")["rwalk"] == {"ewc_lambda": 100}
    with pytest.raises(SettingError, match="not on split-digits"):
        read_choices(kept, "split-digits")


def test_kept_runs_are_laid_out_again(tmp_path, capsys):
    runs, out = tmp_path / "runs", tmp_path / "out"
    folders = [write_run(runs, "dco", seed) for seed in (1, 2)]
    keep(tmp_path, runs)
    restore = ["restore", "--study", "group/study", "--results", str(tmp_path / "kept")]
    shutil.copytree(folders[0], out / folders[0].name)
    before = (out / folders[0].name / "outcome.json").stat().st_mtime_ns
    assert main([*restore, "--out", str(out)]) == 0
    assert "1 runs written, 1 were there already" in capsys.readouterr().out
    assert (out / folders[0].name / "outcome.json").stat().st_mtime_ns == before
    for folder in folders:
        run, restored = read_run(folder), read_run(out / folder.name)
        assert (restored.config, restored.outcome) == (run.config, run.outcome)
        assert restored.metrics.equals(run.metrics)
    assert main([*restore[:2], "none", *restore[3:], "--out", str(out)]) == 2
    assert "there is no study" in capsys.readouterr().err


@pytest.mark.usefixtures("_in_this_process")
def test_a_search_continues_from_kept_runs(tmp_path, capsys):
    def search(out, tries):
        sweep = ["sweep", "--benchmark", "split-digits", "--methods", "naive", "--tries", tries]
        short = ["--training", "epochs=1", "--training", "experiences=2"]
        assert main([*sweep, *short, "--out", str(out), "--json"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]["naive"]

    first, second = tmp_path / "first", tmp_path / "second"
    begun = search(first, "2")
    (first / "chosen.json").unlink()  # as after a search that was killed
    keep(tmp_path, first)
    restored = ["--study", "group/study", "--results", str(tmp_path / "kept"), "--out", str(second)]
    assert main(["restore", *restored]) == 0
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in second.glob("*/outcome.json")}
    whole = search(second, "3")
    assert whole["candidates"][:2] == begun["candidates"]
    after = {path: path.stat().st_mtime_ns for path in second.glob("*/outcome.json")}
    assert before.items() < after.items()
