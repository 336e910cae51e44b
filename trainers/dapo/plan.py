"""What a run plans, and what became of it: updates are what is counted, whatever dynamic sampling costs.

Public trainers mix the two units up (verl-project/verl#991: the total was counted in generation batches and the
steps in updates, so that a run never reached its end and its learning rate followed the wrong horizon). Here the
plan, the learning rate, evaluation and checkpoints go by updates; epochs are a result, not a plan.
"""

from __future__ import annotations

from dapo.checkpoint import RunState
from dapo.config import Config
from dapo.data import Prompts
from dapo.expected_rounds import describe_rounds
from dapo.update import learning_rate


def planned_epochs(config: Config, prompts: int) -> float:
    """Passes over the training set that the planned updates train on: those drawn if nothing were filtered."""
    return sum(map(config.train_batch_size_at, range(1, config.planned_updates(prompts) + 1))) / prompts


def epochs(state: RunState, prompts: int) -> float:
    """Prompts asked about so far, over the size of the training set."""
    return (state.prompts_drawn + state.prompts_chosen) / prompts


def progress_metrics(state: RunState, config: Config, train_set: Prompts) -> dict[str, float]:
    """Planned and real updates and epochs, and how often the training set repeats a problem, by metric name."""
    prompts = len(train_set)
    return {
        "data/rows_per_problem": train_set.copies,
        "actor/skipped_updates": float(state.skipped_updates),
        "actor/updates": float(state.step - state.skipped_updates),
        "actor/updates_planned": float(config.planned_updates(prompts)),
        "data/epoch": epochs(state, prompts),
        "data/epochs_planned": planned_epochs(config, prompts),
    }


def clips(config: Config) -> bool:
    """Whether a ratio can leave the clip range: with one step an update it is 1, but for carried groups."""
    steps = -(-config.data.train_batch_size // config.mini_batch_size) * config.actor.ppo_epochs
    filtering = config.algorithm.filter_groups
    return steps > 1 or (filtering.enable and filtering.surplus == "carry")


def describe_plan(config: Config, prompts: int) -> str:
    """The plan in one line."""
    rounds = describe_rounds(config)
    steps, optim = config.planned_updates(prompts), config.actor.optim
    return (
        f"plan: {steps} updates of {config.data.train_batch_size} prompts x {config.rollout.n} responses, "
        f"{planned_epochs(config, prompts):.2f} epochs of {prompts} prompts if nothing is filtered; learning rate "
        f"{learning_rate(optim, 1):.3g} at the first update, {learning_rate(optim, steps):.3g} at the last"
        + ("" if clips(config) else "; one optimiser step per update, so that every ratio is 1 and nothing is clipped")
        + (f"; {rounds}" if rounds else "")
    )


def describe_outcome(state: RunState, config: Config, prompts: int) -> str:
    """What became of the plan, in one line."""
    steps = config.planned_updates(prompts)
    return (
        f"done: {state.step} of {steps} planned updates, {state.skipped_updates} of them skipped; "
        f"{epochs(state, prompts):.2f} epochs drawn in {state.rounds} rounds, "
        f"{planned_epochs(config, prompts):.2f} planned without filtering; learning rate "
        f"{learning_rate(config.actor.optim, max(state.step, 1)):.3g}; tokens: "
        + ", ".join(f"{count:.0f} {name.split('/')[1]}" for name, count in state.token_metrics().items())
    )
