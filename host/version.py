"""Which version of the package runs: what pyproject.toml said when it was installed."""

PACKAGE = "deadpool-train"


def package_version() -> str:
    """Returns the version, "0+unknown" for a source tree that is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and seldom needed

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "0+unknown"
