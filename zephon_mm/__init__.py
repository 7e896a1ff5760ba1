"""zephon_mm: an elastic, deterministic loader for vision-language pre-training."""
