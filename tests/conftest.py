"""What all tests share: reproducible property tests, and no silent skip in CI."""

import os

import hypothesis
import pytest

from regard import _kernel

# The same examples on every run and machine; timing on a shared core is not what these tests judge.
hypothesis.settings.register_profile("regard", derandomize=True, deadline=None)
hypothesis.settings.load_profile("regard")

# With REGARD_CI=1 a skip fails, unless its reason starts with this word: what the processor or
# the system lacks can't be installed, everything else must be.
EXCUSED = "machine:"


def _fail_unexcused_skip(report: pytest.CollectReport | pytest.TestReport) -> None:
    if not os.environ.get("REGARD_CI") or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if not reason.startswith(EXCUSED):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, which CI doesn't accept: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _fail_unexcused_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    _fail_unexcused_skip(report)
    return report


@pytest.fixture(params=_kernel.kernels())
def kernel(request):
    """Run a test on every kernel that this processor can run."""
    before = _kernel.kernel()
    _kernel.use_kernel(request.param)
    yield request.param
    _kernel.use_kernel(before)
