"""The commands that pages show for kept results are those that make these results."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import COMMANDS, _parser
from benchmarks.commands.arguments import request
from benchmarks.report.settings import default_settings, key_of
from benchmarks.runs import planning
from benchmarks.runs.choices import read_choices
from benchmarks.runs.jobs import Job
from benchmarks.runs.kept import RESULTS, Study, read_study, study_path
from benchmarks.runs.planning import SEARCHED_TRAINING, Plan
from benchmarks.runs.records import Run
from benchmarks.runs.search import Search
from benchmarks.runs.training import Training
from docs.run_pages import ROOT

UNDER_WAY = "under-way/"
"""Studies whose runs are not all made yet."""
PAGES = ["reproduction", "comparison", "tuning", "compression", "baselines", "kron", "cost-of-dco"]
_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LABELS = {
    "cifar10.npz": "split5-cifar10.npz-345496a3",
    "cifar100_noisy.npz": "split10-cifar100_noisy.npz-d6908971",
}
_CHOSEN_IN = "table-1-tuning/baselines"  # several sweeps, for a benchmark each, in one study


def page_text(page: str) -> str:
    """A page of docs/."""
    return (ROOT / "docs" / f"{page}.md").read_text()


def commands(page: str) -> Iterator[list[str]]:
    """What a shell makes of the commands on a page that make runs, word by word."""
    for language, block in _BLOCK.findall(page_text(page)):
        if language in ("", "bash") and "python -m benchmarks" in block:
            script = f'python() {{ printf "%s\\037" "${{@:3}}"; echo; }}\n{block}'
            shell = subprocess.run(
                ["bash", "-eu", "-c", script], capture_output=True, text=True, check=True
            )
            for line in shell.stdout.splitlines():
                words = line.split("\037")[:-1]
                if words[0] in ("run", "sweep", "compare"):
                    yield words


def planned(words: list[str]) -> list[Job]:
    """The runs that a command makes; none for a stream of the comparison that has no runs yet."""
    args = _parser(words[0]).parse_args(words)
    plan = Plan(request(args))
    study = kept().get(kept_as(args.out), Study())
    if kept_as(args.out).startswith("comparison") and not any(
        run.benchmark == plan.benchmark for run in study.runs.values()
    ):
        return []
    if words[0] == "compare":
        plan = plan.with_chosen(choices_of(args.chosen, plan.benchmark))
        return [plan.job(method, seed) for seed in args.seeds for method in args.methods]
    if words[0] == "sweep" and args.tries:
        starts = {} if args.start is None else choices_of(args.start, None)
        return [
            plan.job(method, seed, tried, "validation")
            for method in args.methods
            for tried in searched(plan, method, starts.get(method), args.tries, study)
            for seed in args.seeds
        ]
    sweeps = words[0] == "sweep"
    return [
        plan.job(method, seed, tried, "validation" if sweeps else "test")
        for seed in args.seeds
        for method in args.methods
        for tried in plan.combinations((plan.grid if sweeps else plan.given_grid)(method))
    ]


def choices_of(file: Path, benchmark: str | None) -> Mapping[str, Any]:
    """What was chosen on a benchmark, as it is kept."""
    path = study_path(kept_as(file.parent))
    return read_choices(path if path.exists() else study_path(_CHOSEN_IN), benchmark)


def kept_as(folder: Path) -> str:
    """The study that has the runs of a folder."""
    return re.sub("^tuning/", "comparison-tuning/", str(folder).removeprefix("runs/"))


def searched(
    plan: Plan, method: str, start: Mapping[str, Any] | None, tries: int, study: Study
) -> Iterator[dict[str, Any]]:
    """What a search asks for if it gets the answers that are kept."""
    candidates = study.chosen["methods"][method]["candidates"]
    errors = {key_of(one["settings"]): one["validation_error"] for one in candidates}
    search = Search(plan.coordinates(method, start), tries)
    while (asked := search.asked) is not None:
        yield asked
        assert key_of(asked) in errors, f"{method} on {plan.benchmark}: {asked} was not tried"
        search.answer(errors[key_of(asked)])


def key(made: Job | Run) -> str:
    """Equal for a job and the run it makes; settings that came later have their defaults."""
    settings = default_settings(made.method) | dict(made.settings)
    training = made.training if isinstance(made, Run) else made.training.as_json()
    return key_of((made.benchmark, made.method, made.seed, made.split, training, settings))


@cache
def kept() -> dict[str, Study]:
    """All studies of runs; other measurements are called as the command that makes them."""
    named = {
        str(path.relative_to(RESULTS)).removesuffix(".csv.xz"): path
        for path in RESULTS.rglob("*.csv.xz")
    }
    return {name: read_study(path) for name, path in named.items() if name not in COMMANDS}


def diverged(study: Study) -> Iterator[dict[str, Any]]:
    """What a sweep tried in vain, as it recorded it."""
    chosen = study.chosen if isinstance(study.chosen, list) else [study.chosen or {"methods": {}}]
    for one in chosen:
        for method, choice in one["methods"].items():
            for candidate in choice.get("candidates", []):
                if candidate["validation_error"] is None:
                    yield {"benchmark": one["benchmark"], "method": method} | candidate["settings"]


def has(job: Job, values: dict[str, Any]) -> bool:
    """Whether a job is the one that is described by some of its values."""
    all_values = {"benchmark": job.benchmark, "method": job.method, **job.training.as_json()}
    all_values |= dict(job.settings)
    return all(key_of(all_values[name]) == key_of(value) for name, value in values.items())


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan without the data: neither looked for nor hashed."""

    def label(name: str, data: Any, _: object) -> str:
        return name if data.npz is None else _LABELS[data.npz.name]

    monkeypatch.setattr(planning, "provide", lambda *_: None)
    monkeypatch.setattr(planning, "data_hashes", lambda *_: {})
    monkeypatch.setattr(planning, "label", label)


@pytest.mark.parametrize("page", PAGES)
def test_every_run_that_a_page_has_a_command_for_is_kept(page: str) -> None:
    runs = {key(run) for study in kept().values() for run in study.runs.values()}
    failed = [values for study in kept().values() for values in diverged(study)]
    shown = list(commands(page))
    assert shown
    jobs = [job for words in shown for job in planned(words)]
    assert jobs or page == "comparison"  # whose streams may not be measured yet
    for job in jobs:
        in_vain = job.split == "validation" and any(has(job, values) for values in failed)
        assert key(job) in runs or in_vain, f"{job.title} {dict(job.settings)} {job.training}"


def test_every_kept_run_has_a_command_on_a_page() -> None:
    made = {key(job) for page in PAGES for words in commands(page) for job in planned(words)}
    for name, study in kept().items():
        if name.startswith(UNDER_WAY):
            continue
        for run in study.runs.values():
            removed = run.settings.get("compression_start") == "largest"  # no such choice any more
            assert removed or key(run) in made, f"{name}: {run.name}"


def test_runs_under_way_are_restored_by_a_page_to_where_its_commands_make_them() -> None:
    """What a search will ask for next is not known, so that its runs cannot all be planned."""
    studies = {name: study for name, study in kept().items() if name.startswith(UNDER_WAY)}
    restored = dict(re.findall(r"restore --study (\S+) --out (\S+)", page_text("comparison")))
    assert restored.keys() == studies.keys()
    for name, study in studies.items():
        makers = [words for words in commands("comparison") if restored[name] in words]
        asked = [_parser(words[0]).parse_args(words) for words in makers]
        plans = {args.benchmark: Plan(request(args)) for args in asked}
        for run in study.runs.values():
            plan = plans[run.benchmark]
            searched = [*plan.coordinates(run.method), *SEARCHED_TRAINING]
            values = Training.defaults() | run.training | run.settings
            tried = {one: values[one] for one in searched if one in values}
            job = plan.job(run.method, run.seed, tried, run.split)
            assert key(job) == key(run), f"{name}: {run.name}"


def test_a_search_is_followed_by_the_answers_that_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "sweep --benchmark split-digits --methods joint --tries 4 --out runs/tuning/digits"
    assert planned(words.split()) == []  # not measured
    values = {"lr": [0.01, 0.03, 0.003, 0.01], "weight_decay": [0.0, 0.0, 0.0, 0.001]}
    tried = [dict(zip(values, pair, strict=True)) for pair in zip(*values.values(), strict=True)]
    candidates = [{"settings": one, "validation_error": one["lr"]} for one in tried]
    candidates[2]["validation_error"] = None  # diverged
    any_run = next(iter(kept()["table-1"].runs.values()))
    run = replace(any_run, config={**any_run.config, "benchmark": "split-digits"})
    study = Study({run.name: run}, {"methods": {"joint": {"candidates": candidates}}})
    monkeypatch.setitem(kept(), "comparison-tuning/digits", study)
    jobs = planned(words.split())
    assert [(job.training.lr, job.training.weight_decay) for job in jobs] == list(
        zip(*values.values(), strict=True)
    )
    assert {job.split for job in jobs} == {"validation"}
    del candidates[3]
    with pytest.raises(AssertionError, match=r"joint on split-digits: .* was not tried"):
        planned(words.split())
