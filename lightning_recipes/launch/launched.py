"""What the program that started this process has decided about the whole job."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Asked", "launched"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One thing that the launcher has decided.

    Attributes:
        value: As the Trainer takes it.
        source: Where it stands, in the user's words: ``"--devices 2"``.
    """

    value: int | str
    source: str


def launched(environment: Mapping[str, str]) -> dict[str, Asked]:
    """Return what is decided already, by the Trainer's names for it; empty if nothing launched us.

    ``devices`` and ``num_nodes`` are always there under a launcher, ``strategy``, ``precision`` and
    ``accelerator`` where they were asked for. Read are the variables of torchrun, those that
    ``lightning-recipes run`` and ``fabric run`` add to them, and those of SLURM where tasks are
    started with ``srun``; torchrun's come first, since it runs inside of SLURM, too.

    Args:
        environment: ``os.environ``, or one to try.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return _by_torchrun(environment)
    # Lightning's own test for a job of tasks; in an interactive one nothing is started by srun.
    is_interactive = environment.get("SLURM_JOB_NAME") in ("bash", "interactive")
    if "SLURM_NTASKS" in environment and not is_interactive:
        return _by_slurm(environment)
    return {}


def _by_torchrun(environment: Mapping[str, str]) -> dict[str, Asked]:
    num_processes = int(environment["WORLD_SIZE"])
    per_node = int(environment.get("LOCAL_WORLD_SIZE", num_processes))
    num_nodes = int(environment.get("GROUP_WORLD_SIZE", num_processes // per_node))
    if environment.get("LT_CLI_USED") != "1":
        return {
            "devices": Asked(value=per_node, source=f"LOCAL_WORLD_SIZE={per_node}"),
            "num_nodes": Asked(value=num_nodes, source=f"GROUP_WORLD_SIZE={num_nodes}"),
        }
    listed = environment.get("LT_DEVICES", "")
    devices = listed if "," in listed else per_node
    asked = {
        "devices": Asked(value=devices, source=f"--devices {devices}"),
        "num_nodes": Asked(value=num_nodes, source=f"--num-nodes {num_nodes}"),
    }
    for name in ("strategy", "precision", "accelerator"):
        if (value := environment.get(f"LT_{name.upper()}")) is not None:
            asked[name] = Asked(value=value, source=f"--{name} {value}")
    return asked


def _by_slurm(environment: Mapping[str, str]) -> dict[str, Asked]:
    num_tasks = int(environment["SLURM_NTASKS"])
    num_nodes = int(environment.get("SLURM_NNODES", 1))
    per_node = int(environment.get("SLURM_NTASKS_PER_NODE", num_tasks // num_nodes))
    name = "SLURM_NTASKS_PER_NODE" if "SLURM_NTASKS_PER_NODE" in environment else "SLURM_NTASKS"
    source = f"{name}={environment[name]}"
    return {
        "devices": Asked(value=per_node, source=source),
        "num_nodes": Asked(value=num_nodes, source=f"SLURM_NNODES={num_nodes}"),
    }
