"""Ctrl-C in the midst of a search."""

import blocklp as bl


def interrupt(monkeypatch, owner, name, after):
    """Press Ctrl-C, once, in the call of a function that comes after so many; return a list that says whether it was."""
    given, left, pressed = getattr(owner, name), after, []

    def interrupted(*args, **options):
        nonlocal left
        left -= 1
        if left == -1:
            pressed.append(True)
            raise KeyboardInterrupt
        return given(*args, **options)

    monkeypatch.setattr(owner, name, staticmethod(interrupted) if isinstance(vars(owner)[name], classmethod) else interrupted)
    return pressed


def interrupt_anywhere(monkeypatch, owner, name, times, solve, check):
    """Interrupt a solver in calls of a function; each result must be a bracket, and say that it was interrupted."""
    for after in times:
        with monkeypatch.context() as patch:
            pressed = interrupt(patch, owner, name, after)
            found = solve()
        check(found)
        assert bool(pressed) == (found.status is bl.Status.INTERRUPTED) == (not found.proven)
        assert pressed or after
