"""The number that stands for no step: before the first, or where none is meant."""

NO_STEP = -1  # wherever a step is expected and there is none
