"""Where each train loader stands between two batches."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn

from lightning_recipes.callbacks.loop_state import fetches_ahead, rebuild_train_iterator
from lightning_recipes.data.loader import ResumableDataLoader

__all__ = ["TrainLoaders"]

Notes = list[tuple[Any, Any]]
Positions = dict[str, Any]


class TrainLoaders:
    """The train loaders' positions, such that the next batch is the one not yet trained on.

    A loader that counts what it hands out is one ahead as soon as a batch is in hand, and two where
    Lightning fetches ahead (loaders without a length). So positions are noted at the end of every
    batch, and the one that fits is looked up. A loader is a
    :class:`~lightning_recipes.ResumableDataLoader`, or any with ``state_dict`` and
    ``load_state_dict``; another has no position, and is warned of.
    """

    def __init__(self) -> None:
        self._source: Any = None
        self._loaders: list[Any] = []
        self._noted: list[Notes] = []
        self._is_epoch_end = False

    def start(self, trainer: Trainer) -> None:
        """Note the positions before the first batch."""
        loaders = self._flattened(trainer)
        strangers = {type(loader).__name__ for loader in loaders if not _is_stateful(loader)}
        if strangers:
            rank_zero_warn(
                f"The train loader {', '.join(sorted(strangers))} has no position to save: a run "
                "resumed inside an epoch sees the first batches of that epoch again. Wrap it: "
                "lightning_recipes.resumable(loader)."
            )
        self._noted, self._is_epoch_end = [_notes(loaders)], False

    def note(self, trainer: Trainer) -> None:
        """Note the positions at the end of a batch."""
        previous = [] if self._is_epoch_end else self._noted[-1:]
        self._noted = [*previous, _notes(self._flattened(trainer))]
        self._is_epoch_end = trainer.is_last_batch

    def before_next_batch(self, trainer: Trainer) -> Positions | None:
        """Return the positions before the batch that follows the last noted one.

        None at the second batch of an epoch where Lightning fetches ahead: that position passes
        between two hooks.
        """
        notes = self._noted[-1]
        if fetches_ahead(trainer) and not self._is_epoch_end:
            if len(self._noted) < 2:
                return None
            notes = self._noted[0]
        states = [
            {**loader.state_dict(), **note} if isinstance(loader, ResumableDataLoader) else note
            for loader, note in notes
        ]
        return {"states": states, "is_epoch_start": self._is_epoch_end}

    def restore(
        self, trainer: Trainer, positions: Positions, *, is_same_world: bool, nearest: bool
    ) -> None:
        """Go to saved positions; with another number of ranks only a ResumableDataLoader can."""
        loaders, states = self._flattened(trainer), positions["states"]
        if len(loaders) != len(states):
            raise ValueError(
                f"The checkpoint has the positions of {len(states)} train loaders, this run has "
                f"{len(loaders)}. Resume with the loaders that were saved."
            )
        for loader, state in zip(loaders, states, strict=True):
            if state is None:
                continue
            if isinstance(loader, ResumableDataLoader):
                loader.load_state_dict(state, nearest=nearest)
            elif is_same_world and _is_stateful(loader):
                loader.load_state_dict(state)
                if positions["is_epoch_start"]:
                    # The position is the end of the last epoch: an iterator there, and the one that
                    # Lightning makes next goes through a new epoch.
                    iter(loader)
            else:
                rank_zero_warn(
                    f"The position of the train loader {type(loader).__name__} cannot be carried "
                    "to another number of ranks or another kind of loader: it starts anew."
                )
        if not all(isinstance(loader, ResumableDataLoader) for loader in loaders):
            rebuild_train_iterator(trainer)

    def _flattened(self, trainer: Trainer) -> list[Any]:
        if trainer.train_dataloader is not self._source:  # new, or reloaded
            self._source = trainer.train_dataloader
            self._loaders = CombinedLoader(self._source).flattened
        return self._loaders


def _is_stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def _notes(loaders: list[Any]) -> Notes:
    return [(loader, _note(loader)) for loader in loaders]


def _note(loader: Any) -> Any:
    if isinstance(loader, ResumableDataLoader):
        return loader.position()  # at every batch, and the rest of its state stays what it is
    return loader.state_dict() if _is_stateful(loader) else None
