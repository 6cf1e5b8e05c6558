"""Teeth: which mutants the suite kills, and which of them the rules of others kill.

`answers` asks a kernel and has what its answers are compared with; `matrix` makes the row of a mutant, `honest` that
of false alarms on a case, `power` plants errors of growing size; `runs` makes rows in processes of their own,
resumable; `results` counts; `pages` writes; `command` is `refattn teeth`.
"""
