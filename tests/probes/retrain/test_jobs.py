"""The trainings of ROAR: each distinct one once, parents first, packs that never change."""

from __future__ import annotations

import pytest

from faithscope.methods import resolve_methods
from faithscope.probes.retrain.jobs import Job, Jobs, jobs_of
from families import refused

PAPER = ["attention", "gradient", "input_x_gradient", "integrated_gradients"]
BOTH = ("roar", "recursive")
CUSTOM = (0, 10, 30, 50, 70, 90, 100)


def made(measures=PAPER, seeds=5, levels=None, procedures=BOTH, strategy="relative") -> Jobs:
    found = {item.label: item.reads_model for item in resolve_methods(measures, "text")}
    return jobs_of(found, range(seeds), levels, procedures, strategy)


def test_the_papers_babi_run_is_395_trainings():
    jobs = made()
    assert len(jobs) == 395
    kinds = {
        "base": [job for job in jobs.jobs if job.k == 0],
        "all": [job for job in jobs.jobs if job.k == 100],
        "random": [job for job in jobs.jobs if job.measure == "random"],
        "roar": [job for job in jobs.jobs if job.procedure == "roar" and job.measure in PAPER],
        "recursive": [job for job in jobs.jobs if job.procedure == "recursive"],
    }
    assert {name: len(found) for name, found in kinds.items()} == {
        "base": 5,
        "all": 5,
        "random": 45,
        "roar": 180,
        "recursive": 160,
    }


@pytest.mark.parametrize(
    ("request_", "trainings"),
    [
        ({"seeds": 1, "procedures": ["roar"]}, 1 + 1 + 9 + 36),
        ({"seeds": 1, "procedures": "recursive"}, 1 + 1 + 9 + 36),
        ({"seeds": 2, "levels": CUSTOM}, 2 * (1 + 1 + 5 + 4 * (5 + 4))),
        ({"seeds": 3, "strategy": "count"}, 3 * (1 + 10 + 4 * (10 + 9))),
        ({"seeds": 3, "measures": ["mutual_information"]}, 3 * (1 + 1 + 9 + 9)),
        ({"seeds": 3, "measures": ["random"]}, 3 * (1 + 1 + 9)),
    ],
)
def test_every_distinct_training_is_there_once(request_, trainings):
    jobs = made(**request_)
    assert len(jobs) == trainings == len({job.id for job in jobs.jobs})


def test_what_procedures_and_measures_share():
    jobs = made(["gradient", "attention", "mutual_information"], 2, CUSTOM)
    for seed in (0, 1):
        curves = {
            (measure, procedure): jobs.curve(measure, procedure, seed)
            for measure in jobs.measures
            for procedure in BOTH
        }
        assert jobs.measures == ("gradient", "attention", "mutual_information", "random")
        for curve in curves.values():
            assert tuple(curve) == CUSTOM
            assert curve[0] is curves["random", "roar"][0]
            assert curve[100] is curves["random", "roar"][100]
        for measure in ("random", "mutual_information"):
            assert curves[measure, "roar"] == curves[measure, "recursive"]
            assert all(job.parent is None for job in curves[measure, "roar"].values())
        one, other = curves["gradient", "roar"], curves["gradient", "recursive"]
        assert one[10] is other[10]
        assert [one[k].parent.k for k in CUSTOM[1:-1]] == [0] * 5
        assert [other[k].parent.k for k in CUSTOM[1:-1]] == [0, 10, 30, 50, 70]
        for k in CUSTOM[2:-1]:
            assert other[k] != one[k]
            assert other[k].parent is other[CUSTOM[CUSTOM.index(k) - 1]]
            assert other[k].parent.seed == seed


def test_counted_tokens_have_no_last_level_of_their_own():
    jobs = made(["gradient"], 1, strategy="count")
    curve = jobs.curve("gradient", "recursive", 0)
    assert tuple(curve) == tuple(range(11))
    assert [job.parent.k for job in curve.values() if job.parent] == list(range(10))
    assert all(job.k < 11 and job.measure for job in jobs.jobs if job.k)


@pytest.mark.parametrize("measures", [PAPER, ["gradient"], "registered", ["mutual_information"]])
@pytest.mark.parametrize("procedures", [BOTH, ["roar"], ["recursive"]])
@pytest.mark.parametrize("options", [{}, {"levels": CUSTOM}, {"strategy": "count"}])
def test_waves_hold_every_job_once_after_its_parent_and_are_few_and_even(
    measures, procedures, options
):
    jobs = made(measures, 3, procedures=procedures, **options)
    waves = jobs.waves()
    place = {job: number for number, wave in enumerate(waves) for job in wave}
    assert sum(map(len, waves)) == len(jobs) == len(place)
    for job in jobs.jobs:
        assert job.parent is None or place[job.parent] < place[job]

    def depth(job: Job) -> int:
        return 0 if job.parent is None else 1 + depth(job.parent)

    assert len(waves) == 1 + max(map(depth, jobs.jobs))


def test_the_waves_of_the_papers_run_are_even():
    assert [len(wave) for wave in made().waves()] == [40] * 5 + [39] * 5
    assert [len(pack.jobs) for pack in made().packs(45)] == [40] * 5 + [39] * 5


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_packs_keep_to_their_size_and_their_order(size):
    jobs = made(["gradient", "attention"], 2)
    packs = jobs.packs(size)
    assert packs == made(["gradient", "attention"], 2).packs(size)
    assert max(len(pack.jobs) for pack in packs) <= size
    assert len({pack.id for pack in packs}) == len(packs)
    assert sorted(pack.id for pack in packs) == [pack.id for pack in packs]
    before: set[Job] = set()
    for pack in packs:
        assert all(job.parent is None or job.parent in before for job in pack.jobs)
        before |= set(pack.jobs)
    assert before == set(jobs.jobs)


def test_ids_can_be_files_names():
    wanted = ["integrated_gradients(steps=20)", "integrated_gradients(steps=20, scaling=code)"]
    jobs = made([*wanted, "input_x_gradient(signed=false)"], 2)
    for job in jobs.jobs:
        assert set(job.id) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert not job.id.startswith(".")
    assert len({job.id for job in jobs.jobs}) == len(jobs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"levels": []}, ["levels (none)", "at least one between 0 and 100"]),
        ({"levels": [0, 100]}, ["at least one between"]),
        ({"levels": [10, 110]}, ["10, 110"]),
        ({"levels": [0.5]}, ["level must be a whole number"]),
        ({"levels": [-1], "strategy": "count"}, ["at least one token"]),
        ({"levels": [1, 10_001], "strategy": "count"}, ["10001", "at most 10,000 tokens"]),
        ({"levels": range(1, 10**12), "strategy": "count"}, ["too many levels", "10,001"]),
        ({"seeds": 0}, ["seeds (none)"]),
        ({"seeds": 3_000_000_000}, ["too many seeds", "1,000"]),
        ({"procedures": []}, ["No procedure given"]),
        ({"procedures": ["recursion"]}, ["Unknown procedure 'recursion'", "recursive"]),
        ({"strategy": "quantile"}, ["Unknown strategy 'quantile'", "relative"]),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(options, words):
    with refused(*words):
        made(**options)


@pytest.mark.parametrize("seeds", [[0, 0], [-1], [2**31]])
def test_seeds_that_cannot_be_used_are_refused(seeds):
    with refused("seeds", "each once"):
        jobs_of({"gradient": True}, seeds)
