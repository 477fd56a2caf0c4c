"""Profiles in loops that are not the user's own: one line for Hugging Face's Trainer, and one for Lightning.

    trainer = transformers.Trainer(..., callbacks=[hugging_face_callback(args)])
    trainer = lightning.Trainer(..., callbacks=[lightning_callback(args)])

A step is one step of the optimizer there, and one batch here. Neither library is imported before it is asked
for.
"""

from __future__ import annotations

from typing import Any

from .recording import Profiler, profile


class _Loop:
    """A profiler that a loop begins, steps and ends, and ends once."""

    def __init__(self, args: Any) -> None:
        self._args = args
        self.profiler: Profiler | None = None

    def begin(self, first_step: int) -> None:
        if self.profiler is None:
            self.profiler = profile(self._args, first_step=first_step).__enter__()

    def step(self) -> None:
        if self.profiler is not None:
            self.profiler.step()

    def end(self, error: BaseException | None = None) -> None:
        if self.profiler is not None:
            self.profiler.__exit__(type(error) if error is not None else None, error, None)


def hugging_face_callback(args: Any) -> Any:
    """A transformers.TrainerCallback that records what `args` select."""
    from transformers import TrainerCallback

    class ProfileCallback(TrainerCallback):
        def __init__(self) -> None:
            self.loop = _Loop(args)

        def on_train_begin(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            self.loop.begin(state.global_step)

        def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            self.loop.step()

        def on_train_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
            self.loop.end()

    return ProfileCallback()


def lightning_callback(args: Any) -> Any:
    """A lightning.pytorch (or pytorch_lightning) Callback that records what `args` select."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class ProfileCallback(Callback):
        def __init__(self) -> None:
            self.loop = _Loop(args)

        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.loop.begin(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            self.loop.step()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.loop.end()

        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            self.loop.end(exception)

    return ProfileCallback()
