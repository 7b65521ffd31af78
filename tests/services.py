"""Fixtures with real servers, for tests that need them; such a test is skipped, with the reason, where packages lack."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests import slurm as slurms

if TYPE_CHECKING:
    from tests.postgres import Server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator["Server"]:
    """A PostgreSQL server for the whole session."""
    postgres = pytest.importorskip("tests.postgres", reason="no psycopg[binary]: uv sync", exc_type=ImportError)
    programs = postgres.binaries()
    if not programs:
        pytest.skip("no PostgreSQL server in /usr/lib/postgresql: apt-get install postgresql")
    with postgres.server(programs) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: "Server") -> str:
    """The URL of a fresh empty database, for SQLAlchemy."""
    return postgres_server.fresh()


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[slurms.Slurm]:
    """A Slurm for the whole session."""
    if lacking := slurms.missing():
        pytest.skip(f"no {', '.join(lacking)}: apt-get install slurm-wlm munge")
    slurm = slurms.Slurm()
    try:
        yield slurm
    finally:
        slurm.close()


@pytest.fixture
def slurm(slurm_cluster: slurms.Slurm) -> Iterator[slurms.Slurm]:
    """A Slurm without jobs; those of the test are gone after it."""
    yield slurm_cluster
    slurm_cluster.cancel_all()
