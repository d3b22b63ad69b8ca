"""A folder is taken away, also when somebody else takes it away at the same time."""

import shutil
import threading
from pathlib import Path

from deadpool.host.disk import remove_folder


def test_two_remove_the_same_folder(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        (folder / "inner").mkdir(parents=True)
        for name in range(20):
            (folder / "inner" / str(name)).touch()
        other = threading.Thread(target=shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True})
        other.start()
        remove_folder(folder)
        other.join()
        assert not folder.exists()
    remove_folder(tmp_path / "never there")
