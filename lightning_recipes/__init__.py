"""PyTorch Lightning runs you can kill anywhere, resume anywhere, and trust."""

from lightning_recipes.callbacks.gradient_norm import GradientNormMonitor
from lightning_recipes.callbacks.loss_scale import LossScaleMonitor
from lightning_recipes.callbacks.nan_detector import NaNDetector
from lightning_recipes.callbacks.preempted import Preempted
from lightning_recipes.callbacks.rank_check import RankCheck
from lightning_recipes.callbacks.resume_checkpoint import ResumeCheckpoint
from lightning_recipes.callbacks.warmup_cosine import WarmupCosineLR
from lightning_recipes.checkpoints import (
    BrokenCheckpoint,
    intact_checkpoints,
    newest_intact,
    verify,
)
from lightning_recipes.data.base import RecipeDataModule
from lightning_recipes.data.cached_dataset import CachedDataset
from lightning_recipes.data.collate import PadCollate
from lightning_recipes.data.length_buckets import LengthBuckets
from lightning_recipes.data.lengths import lengths_of
from lightning_recipes.data.loader import ResumableDataLoader
from lightning_recipes.data.padded import LeftPadded, Padded
from lightning_recipes.data.resumable import resumable
from lightning_recipes.data.seeding import sample_seed, seed_worker
from lightning_recipes.data.sequence_dataset import SequenceDataset
from lightning_recipes.data.split import split_indices
from lightning_recipes.datasets.digits import DigitsDataModule
from lightning_recipes.datasets.names import NamesDataModule
from lightning_recipes.gradients import (
    clip_with_norm,
    module_norms,
    nonfinite_names,
    total_norm,
)
from lightning_recipes.launch.trainer import trainer
from lightning_recipes.modules.base import RecipeModule
from lightning_recipes.modules.classifier import Classifier
from lightning_recipes.modules.optimizers import lr_scale, parameter_groups
from lightning_recipes.modules.regressor import Regressor
from lightning_recipes.modules.sequence_classifier import SequenceClassifier
from lightning_recipes.modules.step import Step, cross_entropy_step
from lightning_recipes.nonfinite.error import NonFiniteError, Origin
from lightning_recipes.nonfinite.finding import Finding
from lightning_recipes.nonfinite.replay import replay
from lightning_recipes.resume import resume_path
from lightning_recipes.rng import (
    capture_rng_state,
    derive_seed,
    preserve_rng,
    restore_rng_state,
)
from lightning_recipes.schedules import WarmupCosine, simulate, warmup_cosine
from lightning_recipes.weights import LoadedWeights, WeightsDoNotFit, load_weights

__version__ = "0.1.0"

__all__ = [
    "BrokenCheckpoint",
    "CachedDataset",
    "Classifier",
    "DigitsDataModule",
    "Finding",
    "GradientNormMonitor",
    "LeftPadded",
    "LengthBuckets",
    "LoadedWeights",
    "LossScaleMonitor",
    "NaNDetector",
    "NamesDataModule",
    "NonFiniteError",
    "Origin",
    "PadCollate",
    "Padded",
    "Preempted",
    "RankCheck",
    "RecipeDataModule",
    "RecipeModule",
    "Regressor",
    "ResumableDataLoader",
    "ResumeCheckpoint",
    "SequenceClassifier",
    "SequenceDataset",
    "Step",
    "WarmupCosine",
    "WarmupCosineLR",
    "WeightsDoNotFit",
    "capture_rng_state",
    "clip_with_norm",
    "cross_entropy_step",
    "derive_seed",
    "intact_checkpoints",
    "lengths_of",
    "load_weights",
    "lr_scale",
    "module_norms",
    "newest_intact",
    "nonfinite_names",
    "parameter_groups",
    "preserve_rng",
    "replay",
    "restore_rng_state",
    "resumable",
    "resume_path",
    "sample_seed",
    "seed_worker",
    "simulate",
    "split_indices",
    "total_norm",
    "trainer",
    "verify",
    "warmup_cosine",
]
