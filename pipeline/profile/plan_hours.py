"""A plan for all hours, from the files of a profile. Needs pyarrow, but not Spark."""

from __future__ import annotations

from keylane.assignor.hourly import plan_all_hours
from keylane.assignor.profile import LoadProfile
from keylane.assignor.range_plan import RangePlan
from keylane.pipeline.profile.hour_files import HOURS_FOLDER, load_hours, load_index
from keylane.pipeline.profile.worth import describe_hours
from keylane.pipeline.storage import Folder


def plan_folder(
    folder: Folder, profile: LoadProfile, lane_count: int, *, prior: RangePlan | None, slack: float
) -> tuple[RangePlan, str]:
    """The plan whose worst hour is the best possible, and its figures as text.

    Raises:
        ConfigInvalid: the folder has no hours of this profile, or as `plan_ranges`.
    """
    hours = folder.child(HOURS_FOLDER)
    index = load_index(hours)
    plan, report = plan_all_hours(
        profile,
        load_hours(hours, profile),
        lane_count,
        day_of=index.day,
        prior=prior,
        slack=slack,
    )
    return plan, describe_hours(report, index)
