"""Campaigns of many independent tasks over processes and machines (docs/campaigns.md)."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.campaigns.campaign import CampaignEvent as CampaignEvent
    from blocklp.campaigns.campaign import Outcome as Outcome
    from blocklp.campaigns.campaign import Task as Task
    from blocklp.campaigns.campaign import completed as completed
    from blocklp.campaigns.campaign import hard_limit as hard_limit
    from blocklp.campaigns.executors import Executor as Executor
    from blocklp.campaigns.executors import InProcess as InProcess
    from blocklp.campaigns.executors import Shared as Shared
    from blocklp.campaigns.local_executor import LocalExecutor as LocalExecutor
    from blocklp.campaigns.ray_executor import RayExecutor as RayExecutor
    from blocklp.campaigns.records import Records as Records
else:
    publish(
        __name__,
        {
            "blocklp.campaigns.campaign": ["CampaignEvent", "Outcome", "Task", "completed", "hard_limit"],
            "blocklp.campaigns.executors": ["Executor", "InProcess", "Shared"],
            "blocklp.campaigns.local_executor": ["LocalExecutor"],
            "blocklp.campaigns.ray_executor": ["RayExecutor"],
            "blocklp.campaigns.records": ["Records"],
        },
    )
