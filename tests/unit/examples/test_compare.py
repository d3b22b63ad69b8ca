"""compare_runs.py: the judge of every acceptance run must not say "same" when it is not."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


compare = load_script(EXAMPLES / "compare_runs.py")


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines))
    return path


def loss(rank: int, step: int, value: float) -> str:
    return f'{{"rank": {rank}, "step": {step}, "loss": "{value.hex()}"}}'


def run(monkeypatch: pytest.MonkeyPatch, first: Path, second: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["compare_runs.py", str(first), str(second)])
    return int(compare.main())


def test_order_of_lines_and_repeated_equal_lines_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", loss(0, 0, 1.5), loss(1, 0, 2.5), loss(0, 1, 0.5))
    second = write(tmp_path / "b", loss(1, 0, 2.5), loss(0, 0, 1.5), loss(0, 1, 0.5), loss(0, 1, 0.5))
    assert run(monkeypatch, first, second) == 0


def test_one_bit_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first = write(tmp_path / "a", loss(0, 7, 1.0), loss(3, 7, 1.0))
    second = write(tmp_path / "b", loss(0, 7, 1.0), loss(3, 7, 1.0 + 2**-52))
    assert run(monkeypatch, first, second) == 1
    assert "step 7, rank 3" in capsys.readouterr().out


def test_a_missing_step_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", loss(0, 0, 1.0), loss(0, 1, 1.0))
    second = write(tmp_path / "b", loss(0, 0, 1.0))
    assert run(monkeypatch, first, second) == 1
    assert run(monkeypatch, second, first) == 1


def test_a_file_that_contradicts_itself_is_not_the_same_even_when_its_last_word_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path / "a", loss(0, 0, 1.0))
    second = write(tmp_path / "b", loss(0, 0, 2.0), loss(0, 0, 1.0))
    assert run(monkeypatch, first, second) == 1


def test_two_empty_files_are_not_called_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, write(tmp_path / "a"), write(tmp_path / "b")) == 1


def test_digests_are_compared_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path / "a", '{"rank": 0, "digest": "ab"}', '{"rank": 1, "digest": "cd"}')
    second = write(tmp_path / "b", '{"rank": 1, "digest": "cd"}', '{"rank": 0, "digest": "ab"}')
    third = write(tmp_path / "c", '{"rank": 1, "digest": "ab"}', '{"rank": 0, "digest": "cd"}')
    assert run(monkeypatch, first, second) == 0
    assert run(monkeypatch, first, third) == 1


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a", loss(0, 0, 1.0))
    path.write_text(path.read_text() + '{"rank": 0, "st')
    assert compare.read_record(path).values == {(0, 0): (1.0).hex()}


@pytest.mark.parametrize("text", ['{"rank": 0}', '{"rank": "0", "step": 1, "loss": "0x1p+0"}', "[]"])
def test_other_lines_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="neither a loss nor a digest"):
        compare.parse_line(text)
