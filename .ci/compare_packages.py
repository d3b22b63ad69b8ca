"""Do sdist and wheel hold what they should? Exit code 1 names what they do not.

compare_packages.py CHECKOUT SDIST WHEEL WHEEL_OF_SDIST
"""

import subprocess
import sys
import tarfile
import zipfile

ROOMS = ("agent", "cli", "deploy", "host", "integrations", "proto", "supervisor", "trainer_hooks")


def main(checkout: str, sdist: str, wheel: str, wheel_of_sdist: str) -> int:
    listed = subprocess.run(["git", "-C", checkout, "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
    package = {f"deadpool/{path}" for path in listed if path.startswith(tuple(f"{room}/" for room in ROOMS))}
    package |= {"deadpool/__init__.py", "deadpool/py.typed"}
    beside = {path for path in listed if path.startswith(("tests/", "docs/", "examples/", "benchmarks/"))}
    in_wheels = [dict(_files_of_wheel(path)) for path in (wheel, wheel_of_sdist)]
    with tarfile.open(sdist) as archive:
        in_sdist = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    problems = [f"not in the wheel: {path}" for path in sorted(package - in_wheels[0].keys())]
    source = {f"src/{path}" for path in package} | beside
    problems += [f"not in the sdist: {path}" for path in sorted(source - in_sdist)]
    differing = [path for path in sorted(set().union(*in_wheels)) if in_wheels[0].get(path) != in_wheels[1].get(path)]
    problems += [f"not the same in the sdist's wheel: {path}" for path in differing]
    print("\n".join(problems) or f"{len(package)} files in the wheel, {len(in_sdist)} in the sdist, whose wheel is the same")
    return 1 if problems else 0


def _files_of_wheel(path: str) -> list[tuple[str, int]]:
    """Returns (name, checksum) of the package's files."""
    with zipfile.ZipFile(path) as archive:
        return [(each.filename, each.CRC) for each in archive.infolist() if ".dist-info/" not in each.filename]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
