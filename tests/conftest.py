"""What every test shares: Hypothesis profiles, and a seed that can be repeated."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadline: the first call of a kernel compiles it, which takes a second, not 200 ms.
settings.register_profile("dev", deadline=None, print_blob=True)
# CI repeats the same examples, so that a red run is red for everybody; `nightly` looks further.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.register_profile(
    "nightly",
    deadline=None,
    print_blob=True,
    max_examples=5_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev"))
