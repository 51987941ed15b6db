"""What OpenRLHF would refuse, wait for without end or leave out in silence, only when the models are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from openrlhf_swap.flags.placement import policy_ranks


def late_rules(args: SimpleNamespace) -> Iterator[str]:
    """What OpenRLHF would refuse only with all models loaded or after the first rollouts, or never do."""
    correction, reward, rollout, actors = args.algo.advantage, args.reward, args.rollout, policy_ranks(args)
    bounds, gating = correction.is_correction_threshold, correction.is_correction_gating
    if len(bounds) > 2:
        yield f"--algo.advantage.is_correction_threshold has {len(bounds)} values; give HIGH, or LOW and HIGH"
    if correction.is_correction_mode == "clip" and (correction.is_correction_level == "seq" or gating != "ratio"):
        yield (
            f"--algo.advantage.is_correction_mode is clip with level {correction.is_correction_level} and gating "
            f"{gating}; only the ratio of a token can be clipped: use mask"
        )
    if correction.is_correction_level != "off" and gating != "ratio" and len(bounds) == 2 and bounds[0] > 0:
        yield (
            f"--algo.advantage.is_correction_threshold is {bounds[0]:g} {bounds[1]:g}; {gating} has an upper bound "
            "only: give one number"
        )
    longest, buffer = rollout.max_new_tokens or args.data.max_len, reward.overlong_buffer_len
    if buffer is not None and buffer > longest:
        yield f"--reward.overlong_buffer_len is {buffer:g}; a response has at most {longest} tokens: use fewer"
    if reward.stop_properly_penalty_coef is not None and reward.stop_properly_penalty_coef > 1:
        yield (
            f"--reward.stop_properly_penalty_coef is {reward.stop_properly_penalty_coef:g}; give a factor of at most "
            "1, or the negative reward of a truncated response"
        )
    for flag, given in (("use_loss", args.algo.kl.use_loss), ("target", args.algo.kl.target is not None)):
        if given and args.algo.kl.init_coef == 0:
            yield (
                f"--algo.kl.{flag} does nothing where --algo.kl.init_coef is 0, as by default here: give a "
                "coefficient such as 1e-3 as well, or leave it out"
            )
    if args.eval.dataset and args.eval.steps == -1:
        yield (
            f"--eval.dataset is {args.eval.dataset}, which nothing would be evaluated on: give --eval.steps, the "
            "number of training steps between evaluations, as well"
        )
    if "all-linear" in (targets := args.ds.lora.target_modules) and isinstance(targets, list):
        yield "--ds.lora.target_modules is all-linear, which PEFT takes for a module's name in a list: leave it out"
    responses = rollout.batch_size * rollout.n_samples_per_prompt
    if responses // rollout.micro_batch_size < actors:
        yield (
            f"--rollout.micro_batch_size is {rollout.micro_batch_size}, which makes fewer micro-batches of the "
            f"{responses} responses of a step than there are actors ({actors}): use a smaller one"
        )


def batch_rules(args: SimpleNamespace) -> Iterator[str]:
    """Actors with unequal shares would wait for each other without end; an update of its own size mixes two steps."""
    train, rollout = args.train, args.rollout
    actors = policy_ranks(args)
    responses = rollout.batch_size * rollout.n_samples_per_prompt
    if responses % train.batch_size:
        yield (
            f"--train.batch_size is {train.batch_size}, which does not divide the {responses} responses of a step "
            f"(--rollout.batch_size {rollout.batch_size} x --rollout.n_samples_per_prompt "
            f"{rollout.n_samples_per_prompt}): use {responses}"
        )
    if train.dynamic_batch_enable:
        if train.batch_size % actors:
            yield (
                f"--train.batch_size is {train.batch_size}; {actors} actors cannot share the responses of an update "
                "equally, and OpenRLHF would leave the rest of them out: use a number of actors that divides it"
            )
        return
    shares = [("--train.micro_batch_size", train.micro_batch_size, "an update", train.batch_size)]
    if actors > 1:
        shares.append(("--rollout.micro_batch_size", rollout.micro_batch_size, "a step", responses))
    for flag, micro, what, size in shares:
        if size % (actors * micro):
            yield (
                f"{flag} is {micro}; {actors} actors cannot share the {size} responses of {what} in micro-batches "
                f"of that size: use a number of actors and a micro-batch whose product divides {size}"
            )
