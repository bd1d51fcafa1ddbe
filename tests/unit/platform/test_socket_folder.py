"""Where the embedded workers' sockets are."""

from fairserve.platform.wiring import socket_folder


def test_it_is_in_the_data_folder_and_empty(tmp_path):
    folder = socket_folder(tmp_path / "data")
    assert folder == tmp_path / "data" / "sockets"
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "1-events").touch()
    assert list(socket_folder(tmp_path / "data").iterdir()) == []


def test_it_is_elsewhere_if_its_path_is_too_long(tmp_path):
    data = tmp_path / ("d" * 100)
    folder = socket_folder(data)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(str(folder)) < 90
    assert list(data.iterdir()) == []
    folder.rmdir()
