"""A Trainer that fits the way its processes were started."""

import os
from typing import Any

from lightning.pytorch import Trainer

from lightning_recipes.launch.agreement import agreed
from lightning_recipes.launch.launched import launched
from lightning_recipes.launch.strangers import refuse_strangers

__all__ = ["trainer"]


def trainer(**options: Any) -> Trainer:
    """Return a ``lightning.pytorch.Trainer`` that is right under any launcher.

    The same script then runs, unchanged, as one process and as many::

        trainer = lightning_recipes.trainer(max_epochs=10, callbacks=callbacks)

    ============================ ============================================================
    started with                 what the trainer takes from there
    ============================ ============================================================
    ``python``                   nothing: it is ``Trainer(**options)``
    ``lightning-recipes run``    ``devices``, ``num_nodes``, and ``strategy``, ``precision``,
                                 ``accelerator`` where they were given
    ``fabric run``               the same (a plain Trainer trains k models side by side, instead)
    ``torchrun``                 ``devices`` and ``num_nodes``
    ``srun``                     ``devices`` and ``num_nodes`` of the job
    ============================ ============================================================

    Args:
        options: The arguments of the Trainer. Leave the five above out, or say what the launcher
            says; ``"auto"`` leaves the choice to it.

    Raises:
        MisconfigurationException: An argument contradicts the launcher; or the trainer would not
            have all the processes that were started.
    """
    decided = agreed(
        options,
        launched(os.environ),
        show="Trainer({name}={value!r})",
        way_out="leave {name} out of the Trainer, or launch as it says",
    )
    built = Trainer(**{**options, **decided})
    refuse_strangers(built)
    return built
