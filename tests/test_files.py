"""The one atomic write."""

import os

import pytest

from jaxpriv import _files


def test_a_file_is_written_with_its_bytes_and_its_mode(tmp_path):
    path = tmp_path / "report.json"
    for content, private, mode in ((b"first", False, 0o644), (b"second", True, 0o600)):
        _files.write_whole(path, content, private=private)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["report.json"]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_write_that_dies_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "report.json"
    _files.write_whole(path, b"old")

    def dies(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, dies)
        with pytest.raises(OSError, match="no space"):
            _files.write_whole(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report.json"]


def test_a_missing_folder_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="none"):
        _files.write_whole(tmp_path / "none" / "report.json", b"")
