import logging
from pathlib import Path

import pytest
from sweep_platform.logs import LOG, logged
from toybox import trainer as toy

said = logging.getLogger(toy.__name__)


def test_what_the_trainer_says_is_kept_and_nothing_after_it(tmp_path: Path) -> None:
    for line in ("first", "second"):
        with logged(toy, tmp_path / "new"):
            said.info(line)
        said.info("not this")
    lines = (tmp_path / "new" / LOG).read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]


def test_a_full_disk_or_no_folder_ends_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / LOG).symlink_to("/dev/full")
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "file"):
        with logged(toy, folder):
            said.info("plan")
    assert capfd.readouterr() == ("", "")
