"""Gradients of optimal values in all data of a model (:func:`blocklp.value`)."""
