"""The parts of an env in TorchRL's dialect; ``shoal.faces.torchrl.env_base`` puts them together.

specs       the specs of an env: setters, locks, the keys they name
done        done, terminated and truncated at every level: completion of specs and of data
declared    what specs declare, and what a step returns beyond that
plan        what step and reset need to know about the specs, worked out once
masks       "_reset" and "_step": which rows are concerned, and what the others keep
stepping    reset and step
seeds       the chain of seeds
policies    how a callable becomes a policy
rolling     rollout
post_init   what happens to every env after its constructor
inference   specs found by trying the env
gym_doors   an env of this dialect under a gymnasium id
"""
