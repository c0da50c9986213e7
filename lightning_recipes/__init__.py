"""PyTorch Lightning runs you can kill anywhere, resume anywhere, and trust."""

from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.callbacks.warmup_cosine import WarmupCosineLR
from lightning_recipes.data.base import RecipeDataModule
from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.data.padded import LeftPadded, Padded
from lightning_recipes.data.resumable import resumable
from lightning_recipes.data.seeding import sample_seed, seed_worker
from lightning_recipes.data.split import split_indices
from lightning_recipes.datasets.digits import DigitsDataModule
from lightning_recipes.datasets.names import NamesDataModule
from lightning_recipes.modules.base import RecipeModule
from lightning_recipes.modules.classifier import Classifier
from lightning_recipes.modules.optimizers import lr_scale, parameter_groups
from lightning_recipes.modules.regressor import Regressor
from lightning_recipes.modules.sequence_classifier import SequenceClassifier
from lightning_recipes.modules.step import Step, cross_entropy_step
from lightning_recipes.rng import (
    capture_rng_state,
    derive_seed,
    preserve_rng,
    restore_rng_state,
)
from lightning_recipes.schedules import WarmupCosine, simulate, warmup_cosine

__version__ = "0.1.0"

__all__ = [
    "Classifier",
    "DigitsDataModule",
    "LeftPadded",
    "NamesDataModule",
    "PadCollate",
    "Padded",
    "RecipeDataModule",
    "RecipeModule",
    "Regressor",
    "ResumableDataLoader",
    "ResumeCheckpoint",
    "SequenceClassifier",
    "Step",
    "WarmupCosine",
    "WarmupCosineLR",
    "capture_rng_state",
    "cross_entropy_step",
    "derive_seed",
    "lr_scale",
    "parameter_groups",
    "preserve_rng",
    "restore_rng_state",
    "resumable",
    "sample_seed",
    "seed_worker",
    "simulate",
    "split_indices",
    "warmup_cosine",
]
