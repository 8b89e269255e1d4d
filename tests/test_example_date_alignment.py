# SPDX-License-Identifier: MIT
# examples/date_alignment.py: that it reads dates it never saw, looks where it should, and what its
# user sees. Run by pytest; it needs NumPy alone (the picture: matplotlib).
# It does not train; examples/dates/train.py did.
"""Tests of the example that aligns dates."""

import datetime
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def example():
    """The script as a module; its folder is on the path, as it is for its user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import date_alignment

        yield date_alignment


@pytest.fixture(scope="module")
def reader(example):
    return example.DateReader()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("3 March 2021", "2021-03-03"),
        ("December 31, 1999", "1999-12-31"),
        ("29 Feb 48", "2048-02-29"),
        ("the 22nd of June 1987", "1987-06-22"),
        ("7.10.1962", "1962-10-07"),
        ("10/7/62", "1962-10-07"),
        ("2010\u5e7411\u670830\u65e5", "2010-11-30"),
    ],
)
def test_dates_are_read(reader, backend, text, result):
    assert reader.read([text])[0] == [result]


def test_nearly_all_held_out_dates_are_read(example, reader):
    counts = example.accuracy(reader, 500, seed=3)
    assert sum(total for _, total in counts.values()) == 500
    assert sum(right for right, _ in counts.values()) >= 490
    assert len(counts) == 10


def test_training_and_held_out_dates_share_none(example):
    texts = example.texts
    held_out = {result for *_, result in texts.pairs(500, 0, held_out=True)}
    trained = {result for *_, result in texts.pairs(500, 0, held_out=False)}
    assert all(texts.is_held_out(datetime.date.fromisoformat(x)) for x in held_out)
    assert not any(texts.is_held_out(datetime.date.fromisoformat(x)) for x in trained)


def test_formats_write_the_date_they_are_named_after(example):
    day = datetime.date(2021, 3, 3)
    assert [make(day) for make in example.texts.FORMATS.values()] == list(example.texts.FORMATS)
    assert [example.texts.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 30)] == (
        "1st 2nd 3rd 4th 11th 12th 13th 21st 22nd 23rd 30th".split()
    )


def test_each_character_has_weights_of_its_own_over_the_text_alone(reader, backend):
    dates = ["3 March 2021", "Wednesday, 22 September 1999"]
    results, maps = reader.read(dates)
    for date, result, weights in zip(dates, results, maps):
        assert weights.shape == (len(result), len(date))
        np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
        assert len({tuple(row) for row in weights.round(6)}) > 5


def test_the_digits_of_the_year_are_looked_up_where_they_stand(reader):
    for date in ("3 March 2021", "March 14, 1986", "Fri Mar 14 1986"):
        _, (weights,) = reader.read([date])
        year = len(date) - 4
        assert set(weights[2:4].argmax(axis=1)) <= set(range(year, year + 4))


def test_a_batch_gives_what_single_texts_give(example, reader, backend):
    together = reader.read(example.SHOWN)
    for date, result, weights in zip(example.SHOWN, *together):
        alone = reader.read([date])
        assert alone[0] == [result]
        np.testing.assert_allclose(alone[1][0], weights, rtol=0, atol=1e-5)


def test_command_shows_dates_alignments_and_the_accuracy(example, capsys, backend):
    assert example.main(["--count", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["read", "written", "by", "looking", "at"]
    for line, date in zip(lines[1:], example.SHOWN):
        assert line.startswith(date)
    assert lines[12].endswith("of 40 dates that training never saw are right:")
    assert f"backend {backend}," in lines[-1]


def test_command_runs_as_a_script_with_numpy_alone(run_python):
    path = EXAMPLES / "date_alignment.py"
    done = run_python(
        f"""
import runpy, sys
sys.modules["matplotlib"] = sys.modules["torch"] = None
sys.path.insert(0, {str(EXAMPLES)!r})
sys.argv = ["date_alignment.py", "3 March 2021", "--count", "0"]
runpy.run_path({str(path)!r}, run_name="__main__")
""",
        PYTHONIOENCODING="utf-8",
    )
    assert "3 March 2021  2021-03-03" in done.stdout, done.stderr


@pytest.mark.parametrize("dates", [["3 March 2021"], ["3 March 2021", "1999\u5e741\u67082\u65e5"]])
def test_command_draws_the_alignment(example, tmp_path, capsys, dates):
    pytest.importorskip("matplotlib")
    path = tmp_path / "dates.png"
    assert example.main([*dates, "--count", "0", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.endswith(f"wrote {path}\n")


def test_command_says_where_matplotlib_is_missing(example, monkeypatch, tmp_path, capsys):
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert example.main(["3 March 2021", "--count", "0", "--plot", str(tmp_path / "x.png")]) == 1
    assert 'pip install "fastattn[plot]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3 M\u00e4rz 2021"], "expected characters of a date, got '\u00e4'"),
        ([" "], "a date is empty"),
        (["--count", "-1"], "--count: expected at least 0, got -1"),
        (["--plot", "no/such/folder/x.png"], "--plot: no folder"),
    ],
)
def test_command_explains_a_bad_argument(example, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        example.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_the_stored_weights_are_small():
    assert (EXAMPLES / "dates" / "weights.npz").stat().st_size < 200_000
