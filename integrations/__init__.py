"""Frameworks that own the training loop: one module for each, one import and one line in the user's script.

A module here imports its framework and deadpool's public names; nothing else in the package imports a module from here.
"""
