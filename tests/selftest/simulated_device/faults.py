"""What may be wrong with the device, and how its queue works."""

import enum
import os
from dataclasses import dataclass


class Fault(enum.StrEnum):
    """A way of breaking a promise."""

    NONE = ""
    LAGGING_COPY = "a copy to the host returns before it is done"
    REUSED_STAGING = "staging memory is handed out again while a copy from it is pending"
    MISSING_SQRT = "there is no square root"
    MISSING_DOUBLE = "there is no fp64"
    DOWN_CAST_MEMORY = "fp32 is kept in the 9-bit fractions of Spyre's fp16"
    DOWN_CAST_LOOKUP = "embedding_bag computes in bf16"
    FALL_BACK = "embedding_bag is computed on the CPU"
    HOST_POINTER = "a tensor on the device is the host's memory"
    OTHER_DTYPE = "multiplying fp64 gives fp32"
    OTHER_STRIDES = "a transpose is stored anew"


class Pace(enum.StrEnum):
    """When the queue works."""

    AT_ONCE = "as soon as there is something"
    LATE = "when somebody waits for it"


@dataclass
class Settings:
    """What is in force; the environment's at first."""

    fault: Fault
    pace: Pace

    @property
    def late(self) -> bool:
        """Whether work waits for somebody to wait for it; faults that only show on a busy queue need one."""
        return self.pace is Pace.LATE or self.fault in (Fault.LAGGING_COPY, Fault.REUSED_STAGING)


SETTINGS = Settings(
    Fault(os.environ.get("SIMULATED_DEVICE_FAULT", "")),
    Pace(os.environ.get("SIMULATED_DEVICE_PACE", Pace.AT_ONCE.value)),
)
