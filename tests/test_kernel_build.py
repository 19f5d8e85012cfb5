"""One instruction set's code stays in its own object, and can't be linked in another's place.

The linker keeps one copy of a function that several objects share. Were that the copy compiled for
AVX-512, an older processor would meet an illegal instruction, far from any kernel.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parent.parent / "build"


def release_builds() -> list[Path]:
    """Folders of builds as they are shipped: no sanitizer, no debug build."""
    found = []
    for cache in BUILD.glob("**/CMakeCache.txt"):
        text = cache.read_text()
        release = re.search(r"^CMAKE_BUILD_TYPE:\w+=Release$", text, re.M)
        if release and not re.search(r"-fsanitize|^REGARD_SANITIZE:\w+=\S", text, re.M):
            found.append(cache.parent)
    return found


def objects() -> list[Path]:
    """The objects of every instruction set, of every such build; the common ones are plain code."""
    return [
        path
        for build in release_builds()
        for path in build.glob("CMakeFiles/kernel_*.dir/kernel/*.cpp.o*")
        if path.parent.parent.name != "kernel_common.dir"
    ]


def symbols(path: Path) -> list[tuple[str, str]]:
    """Kind and name of each symbol that an object defines for others."""
    done = subprocess.run(
        ["nm", "--defined-only", "--extern-only", "--demangle", path],
        capture_output=True,
        text=True,
        check=True,
    )
    return [(line.split()[1], line.split(maxsplit=2)[2]) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", autouse=True)
def needs_a_build():
    if not shutil.which("nm"):
        pytest.skip("needs nm, from binutils")
    if not objects():
        pytest.skip("needs the kernel's objects: scripts/test builds them")


def test_every_instruction_set_has_its_object():
    for build in release_builds():
        names = {
            path.parent.parent.name for path in objects() if build / "CMakeFiles" in path.parents
        }
        assert "kernel_portable.dir" in names


def test_one_global_symbol():
    for path in objects():
        found = symbols(path)
        assert len(found) == 1, f"{path} defines {found}"
        # Weak ones (W, V, u) are those of which the linker keeps any one copy.
        assert found[0][0] in "TDR", f"{path}: {found[0]} could be replaced by another's copy"


def test_the_self_test():
    """Random problems on arrays of exactly their size, in any strides, and the pool: in C++."""
    tried = False
    for build in release_builds():
        cache = (build / "CMakeCache.txt").read_text()
        cmake = Path(re.search(r"^CMAKE_COMMAND:INTERNAL=(.+)$", cache, re.M).group(1))
        if cmake.exists() and (build / "CMakeFiles" / "kernel_common.dir").exists():
            made = [cmake, "--build", build, "--target", "selftest"]
            subprocess.run(made, check=True, capture_output=True)
            done = subprocess.run([build / "selftest", "300"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert done.stdout.endswith(": good\n")
            tried = True
    if not tried:
        pytest.skip("needs the CMake of a build, which pip puts away: scripts/test keeps it")


def test_no_symbol_in_common():
    for build in release_builds():
        own = [symbols(path)[0][1] for path in objects() if build / "CMakeFiles" in path.parents]
        assert len(own) == len(set(own))
