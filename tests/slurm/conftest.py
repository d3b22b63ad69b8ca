"""One cluster for all tests of this folder. Those marked `long` run when named: -m slurm."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import launching
from slurm_cluster import Cluster, NoClusterError, cluster_in
from training import Training, finished, start


@pytest.fixture(scope="session")
def session_cluster() -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="dps", dir="/tmp"))
    try:
        with cluster_in(folder) as cluster:
            yield cluster
    except NoClusterError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(session_cluster: Cluster) -> Iterator[Cluster]:
    """All nodes idle at the start; no job of the test's runs on at its end."""
    session_cluster.mend()
    yield session_cluster
    session_cluster.run("scancel", "--user=root")


@pytest.fixture(scope="session")
def unbroken_training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same training in a standalone job that nothing happens to."""
    with launching(tmp_path_factory.mktemp("unbroken")) as launcher:
        return finished(start(launcher, "zero"))
