"""Verdicts of the page on text follow their rules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import ttest_1samp, ttest_rel

import roar_runs
from faithscope.metrics.racu import racu

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "studies")]  # as for scripts, which import siblings

import reproduction as page  # noqa: E402
import text_curves  # noqa: E402
import text_findings  # noqa: E402
import text_leakage  # noqa: E402
import text_numbers  # noqa: E402
import text_runs  # noqa: E402

from text_pages import GRADIENTS, rewritten, summary  # noqa: E402


def judged(folder: Path, rule: Any) -> str:
    return str(rule(page.Summaries(folder)).verdict)


def test_model_dependent(tmp_path):
    rule = text_findings.model_dependent
    for name in ("roar_sst", "roar_sst_minilm"):
        summary(tmp_path, name, measures=GRADIENTS, noise=0.005)
    assert judged(tmp_path, rule) == "disagrees"  # the very same numbers
    summary(tmp_path, "roar_sst_minilm", measures=GRADIENTS, shift=0.3)
    assert judged(tmp_path, rule) == "agrees"
    summary(tmp_path, "roar_sst_minilm", measures=GRADIENTS, shift=0.3, seeds=2)
    assert judged(tmp_path, rule) == "inconclusive"


def test_task_dependent(tmp_path, monkeypatch):
    rule = text_findings.task_dependent
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "inconclusive"
    summary(tmp_path, "roar_sst", shift=0.1)
    assert judged(tmp_path, rule) == "disagrees"
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", 0.05)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees"
    ((one, two, here, there, gap, other), *_) = text_findings.swapped(
        text_runs.runs(page.Summaries(tmp_path))
    )
    assert (one, two) == ("attention", "gradient")
    assert (here.name, there.name) == ("roar_sst", "roar_babi1")
    assert gap["ci_low"] > 0 > other["ci_high"]


def test_attention_can_be_faithful(tmp_path, monkeypatch):
    rule = text_findings.attention_faithful
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "agrees"
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", 0.15)
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "agrees in part"  # others are ahead
    summary(tmp_path, "roar_sst")
    (tmp_path / "roar_babi1.json").unlink()
    assert judged(tmp_path, rule) == "agrees"  # as in the paper, where SST is the exception
    monkeypatch.setitem(roar_runs.STRENGTHS, "attention", -0.1)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "disagrees"


def test_integrated_gradients_and_their_cost(tmp_path, monkeypatch):
    rule = text_findings.worth_its_cost
    summary(tmp_path, "roar_babi1")
    assert judged(tmp_path, rule) == "disagrees"  # ahead of both
    monkeypatch.setitem(roar_runs.STRENGTHS, "integrated_gradients", 0.25)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees in part"
    monkeypatch.setitem(roar_runs.STRENGTHS, "integrated_gradients", 0.15)
    summary(tmp_path, "roar_sst")
    assert judged(tmp_path, rule) == "agrees"
    assert "| 3.0 × |" in rule(page.Summaries(tmp_path)).numbers  # 3.5 s and 10.5 s


def test_several_comparisons_share_the_five_percent():
    values = [0.05, 0.2, 0.14, 0.3, 0.11]
    row = text_numbers.with_interval(values)
    for comparisons in (1, 2, 8, 64):
        low = ttest_1samp(values, 0).confidence_interval(1 - 0.05 / comparisons).low
        assert text_numbers.above(row, comparisons=comparisons) == (low > 0)
        assert text_numbers.below(text_numbers.turned(row), comparisons=comparisons) == (low > 0)
    assert text_numbers.above(row, comparisons=1) and not text_numbers.above(row, comparisons=64)


def test_what_only_one_interval_says_is_not_called_significant(tmp_path, monkeypatch):
    monkeypatch.setitem(roar_runs.STRENGTHS, "integrated_gradients", 0.22)
    summary(tmp_path, "roar_babi1", seeds=3, noise=0.02)
    (run,) = text_runs.runs(page.Summaries(tmp_path))
    gap = run.between("gradient", "integrated_gradients")
    said = text_findings.loose_words([run], 8)
    by = "at 95 % for this comparison alone" if text_numbers.below(gap) else "BCa interval alone"
    assert f"below gradient on bAbI-1 ({by})" in said
    assert not text_numbers.below(gap, comparisons=8)


def test_racu_without_models_that_answer_one_class(tmp_path):
    summary(tmp_path, "roar_babi1", measures=("gradient", "random"), noise=0.001, seeds=3)
    with rewritten(tmp_path, "roar_babi1") as study:
        columns = study["values"]["columns"]
        for row in study["values"]["rows"]:
            if row[:3] == ["gradient", "recursive", 1]:
                row[columns.index("40")] = row[columns.index("50")] = 0.15
        study["one_class"] = {"columns": ["measure", "procedure", "seed", "k"], "rows": []}
    (run,) = text_runs.runs(page.Summaries(tmp_path))
    assert text_leakage.one_class_words(run) == ""  # they answer something
    with rewritten(tmp_path, "roar_babi1") as study:
        study["one_class"]["rows"] = [["gradient", "recursive", 1, k] for k in (40, 50)]
        study["racu"]["rows"] = [[*row[:2], 0.9, *row[3:]] for row in study["racu"]["rows"]]
    (run,) = text_runs.runs(page.Summaries(tmp_path))
    said = text_leakage.one_class_words(run)
    assert said.startswith("On bAbI-1, 2 of 27 models trained on texts masked by gradient")
    curve = run.values("gradient")[1]
    line = [curve[3] + (curve[6] - curve[3]) * step / 3 for step in (1, 2)]
    repaired = racu(
        torch.tensor([*curve[:4], *line, *curve[6:]]),
        torch.tensor(run.values("random")[1]),
        torch.arange(11) / 10,
    )
    assert text_leakage.repaired_racu(run, "gradient")["values"][1] == pytest.approx(
        float(repaired)
    )


def test_the_top_twenty_percent(tmp_path):
    rule = text_findings.top_twenty
    summary(tmp_path, "roar_babi1", noise=0.001)
    assert judged(tmp_path, rule) == "agrees"
    with rewritten(tmp_path, "roar_babi1") as study:
        for row in study["values"][
            "rows"
        ]:  # all curves the random one's, turned round: a late drop
            row[3:] = [1.15 - 0.15 - 0.85 * (k / 100) ** 3 for k in range(0, 101, 10)]
    assert judged(tmp_path, rule) == "disagrees"


def test_the_step_to_all_masked_is_no_measures(tmp_path):
    """A curve that falls fastest at the very end, but leaves random's at the beginning."""
    summary(tmp_path, "roar_babi1", measures=("attention", "random"), noise=0.001)
    with rewritten(tmp_path, "roar_babi1") as study:
        for row in study["values"]["rows"]:
            gap = 0.1 if row[0] == "attention" else 0.0
            row[3:] = [0.9, *([0.88 - gap + 0.001 * row[2]] * 9), 0.2]
    (run,) = text_runs.runs(page.Summaries(tmp_path))
    assert text_curves.steepest(run, "attention") == 100
    assert text_curves.steepest(run, "attention", last=False) == 10
    assert text_curves.fastest(run, "attention") == 10
    assert judged(tmp_path, text_findings.top_twenty) == "agrees"


def test_class_leakage(tmp_path):
    rule = text_findings.class_leakage
    summary(tmp_path, "roar_babi1", noise=0.001)
    assert judged(tmp_path, rule) == "inconclusive"
    with rewritten(tmp_path, "roar_babi1") as study:
        columns = study["values"]["columns"]
        for row in study["values"]["rows"]:
            if row[columns.index("procedure")] == "recursive" and row[0] == "attention":
                row[columns.index("80")] = row[columns.index("60")] + 0.2 + 0.001 * row[2]
    assert judged(tmp_path, rule) == "agrees in part"  # one of eight may be chance
    with rewritten(tmp_path, "roar_babi1") as study:
        for row in study["values"]["rows"]:
            if row[columns.index("procedure")] == "recursive":
                row[columns.index("80")] = row[columns.index("60")] + 0.2 + 0.001 * row[2]
    found = rule(page.Summaries(tmp_path))
    assert found.verdict == "agrees"
    assert "to 80 %" in found.numbers


def test_masks_alone_may_reveal_the_class(tmp_path):
    summary(tmp_path, "roar_babi1", noise=0.001)
    file = tmp_path / "roar_babi1_leakage.json"
    probe = {"procedure": "recursive", "level": 90, "seeds": [0, 1, 2, 3, 4], "epochs": 7}
    probe |= {"command": "python studies/roar_leakage.py x"}
    steady, unsteady = [0.3, 0.31, 0.3, 0.29, 0.3], [0.6, 0.1, 0.3, 0.2, 0.25]
    for masks, verdict in ((steady, "agrees in part"), (unsteady, "inconclusive")):
        scores = {"random": [0.2, 0.21, 0.19, 0.2, 0.2], "gradient": masks, "attention": unsteady}
        file.write_text(json.dumps({**probe, "scores": scores}))
        found = text_findings.class_leakage(page.Summaries(tmp_path))
        assert found.verdict == verdict
        assert ("masks of gradient reveal significantly more" in found.said) == (masks is steady)
    assert "With random masks such models reach 20.0 %" in found.said
    gap = text_leakage.mask_gaps(page.Summaries(tmp_path))["gradient"]
    exact = ttest_rel(unsteady, scores["random"]).confidence_interval(0.975)  # two measures
    assert (gap["ci_low"], gap["ci_high"]) == pytest.approx((exact.low, exact.high))


def test_single_seeds_that_recover_are_reported(tmp_path):
    summary(tmp_path, "roar_babi1", measures=("attention", "random"), noise=0.001)
    assert "Single seeds" not in text_findings.class_leakage(page.Summaries(tmp_path)).said
    with rewritten(tmp_path, "roar_babi1") as study:
        for row in study["values"]["rows"]:
            if row[:3] == ["attention", "recursive", 2]:
                row[3:] = [0.9, 0.2, 0.7, *[0.5] * 7, 0.2]
    said = text_findings.class_leakage(page.Summaries(tmp_path)).said
    assert "of 10 curves of one seed, 1 (on bAbI-1) fall to chance" in said
    assert "from 20.0 % at 10 % masked to 70.0 % at 20 %" in said


def test_models_that_learnt_nothing_give_no_verdict(tmp_path):
    summary(tmp_path, "roar_babi1")
    with rewritten(tmp_path, "roar_babi1") as study:
        study["learnt"] = False
    have = page.Summaries(tmp_path)
    assert {finding.verdict for finding in text_findings.findings(have)} == {"inconclusive"}
    assert "learnt nothing: bAbI-1" in text_findings.text_findings(have)


def test_welchs_interval_is_scipys():
    from scipy.stats import ttest_ind

    one, two = [0.1, 0.15, 0.3], [0.5, 0.45, 0.2, 0.6, 0.4]
    ours = text_numbers.welch(one, two)
    theirs = ttest_ind(two, one, equal_var=False).confidence_interval(0.95)
    assert (ours["ci_low"], ours["ci_high"]) == pytest.approx((theirs.low, theirs.high))
    wider = text_numbers.welch(one, two, comparisons=4)
    theirs = ttest_ind(two, one, equal_var=False).confidence_interval(1 - 0.05 / 4)
    assert wider["ci_low"] == pytest.approx(theirs.low)
    assert text_numbers.welch(one[:2], two)["ci_low"] is None


def test_significance_needs_the_student_interval_too():
    values = [0.3, 0.02, 0.25, -0.01, 0.4]
    theirs = ttest_1samp(values, 0).confidence_interval(0.95)
    ours = text_numbers.student(values)
    assert (ours["ci_low"], ours["ci_high"]) == pytest.approx((theirs.low, theirs.high))
    row = text_numbers.with_interval(values)
    assert row["ci_low"] > 0 > ours["ci_low"]
    assert not text_numbers.above(row)
    with text_numbers.bootstrap_alone():
        assert text_numbers.above(row)
        assert text_numbers.below(text_numbers.turned(row))
    assert text_numbers.is_loose(row)
    sure = text_numbers.with_interval([0.3, 0.31, 0.29])
    assert text_numbers.above(sure, 0.2) and not text_numbers.above(sure, 0.3)
    assert text_numbers.below(sure, 0.4) and not text_numbers.below(sure, 0.3)
    assert not text_numbers.above(text_numbers.with_interval([0.3, 0.31]))


def test_the_looser_rule_is_reported_where_it_differs(tmp_path):
    summary(tmp_path, "roar_babi1")
    have = page.Summaries(tmp_path)
    assert "alone: the same six verdicts." in text_findings.text_findings(have)
    with rewritten(tmp_path, "roar_babi1") as study:
        found = {"difference": 0.15, "ci_low": 0.02, "ci_high": 0.3}
        columns = study["measures"]["columns"]
        for row in study["measures"]["rows"]:  # gradient ahead of attention by one seed's doing
            if row[:3] == ["recursive", "attention", "gradient"]:
                row[3:] = [found[key] for key in columns[3:]]
        for row in study["racu_by_seed"]["rows"]:
            if row[:2] == ["gradient", "recursive"]:
                row[3] = 0.6 + (0.8 if row[2] == 0 else 0.02)
    said = text_findings.text_findings(page.Summaries(tmp_path))
    assert "alone: finding 3 *agrees in part* instead of *agrees*" in said
