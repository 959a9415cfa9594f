"""A device that does not exist: PyTorch's PrivateUse1, with memory, a queue and faults of its own.

It is registered through `torch.utils.backend_registration._setup_privateuseone_for_python_backend`, which is private,
young, and not to be undone: only processes of its own import this package. PyTorch does so by itself where an entry
point of the group `torch.backends` names `autoload`, as it does for a vendor's package. What is wrong with the device
is chosen by the environment variable SIMULATED_DEVICE_FAULT, and how its queue works by SIMULATED_DEVICE_PACE.

- `work` is the queue: a thread that computes what it is given, in order.
- `memory` is the device's memory, and the staging memory through which the host's data get there.
- `tensor` is PyTorch's view of it: a tensor class, and what each operator does.
"""

NAME = "simulated"
"""Of the device; no package registers it."""


def autoload() -> None:
    """Register the device; called while torch is imported, which is why nothing here imports torch before."""
    from .tensor import register

    register()
