"""Frameworks that own the training loop: one import and one line in the user's script.

transformers and lightning are what scripts import, each with what the framework knows beside the model (trainer_progress,
lightning_progress). Beneath both: stepping (a step begins and completes in the framework's own calls) and fetched (its batches).
Nothing else in the package imports a module from here.
"""
