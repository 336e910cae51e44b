"""A supervised warm start of the model of a production file, or of overrides alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.production.document import ProductionFile, checked, read_production, validated, with_overrides
from sweep_platform.signals import interruptible
from sweep_platform.spec.faults import OVERRIDE, from_trainer
from sweep_platform.trainers import WarmstartResult, load_trainer, warmstart_trainer

SECTION = "warmstart."
"""Overrides that begin so are settings of the warm start, not of the run that it is for."""


def run_warmstart(
    file: Path | None,
    overrides: Sequence[str],
    *,
    out: Path,
    trainer: str = "dapo",
    progress: Callable[[str, int, int], None] | None = None,
) -> WarmstartResult:
    """Teach a model the solutions of its training problems, and write it to a folder.

    Args:
        file: A production file; None starts from the trainer's defaults.
        overrides: `dotted.key=value` settings for the config; with `warmstart.` before them, for the warm start.
        out: The folder to write, whole or not at all.
        trainer: Name of the trainer where there is no file.
        progress: Told how far it is.

    Raises:
        BadInput: the file or a setting is wrong, or the trainer has no warm start.
        PlatformError: the trainer failed.
        KeyboardInterrupt: on Ctrl-C or SIGTERM; nothing is written then.
    """
    own = [text for text in overrides if text.startswith(SECTION)]
    others = [text for text in overrides if not text.startswith(SECTION)]
    written = ProductionFile(trainer=trainer, config={}) if file is None else read_production(file)
    teacher = warmstart_trainer(load_trainer(written.trainer), written.trainer)
    faults: list[Fault] = []
    tree, _ = with_overrides({}, own, faults)
    settings = validated(
        teacher.WarmstartConfig, tree.get("warmstart", {}), lambda key: f"{OVERRIDE}{SECTION}{key}".rstrip("."), faults
    )
    try:
        production = checked(file or Path("defaults"), written, others)
    except BadInput as error:
        raise BadInput([*faults, *error.faults, *_place_faults(out)]) from error
    faults += from_trainer(teacher.preflight(production.config), production.where)
    faults += _place_faults(out)
    if faults:
        raise BadInput(faults)
    try:
        with interruptible():
            teacher.prepare(production.config, progress)
            return teacher.warmstart(production.config, settings, out, progress)
    except Exception as error:
        if told := getattr(error, "faults", None):
            raise BadInput([Fault(fault.key, fault.got, fault.need, fault.do) for fault in told]) from error
        raise PlatformError(" ".join(str(error).split()) or type(error).__name__) from error


def _place_faults(out: Path) -> list[Fault]:
    """What keeps a folder from being written at the end of a warm start, told before its beginning."""
    if out.exists():
        return [Fault("--out", f"{out}, which exists", "a folder to write", "name another, or remove it")]
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        with TemporaryDirectory(dir=above):
            return []
    except OSError as error:
        need = "a folder that can be written"
        return [Fault("--out", f"{out} ({error.strerror})", need, "name another")]
