"""DeepSpeed's ZeRO behind the trainer: an engine beside torch's, which the extra `deepspeed` installs."""
