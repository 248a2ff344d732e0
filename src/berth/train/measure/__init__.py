"""Measures what a core of this machine does around the computation of a step, with the code that trains.

`host.measure_host` returns `HostRates`. Everything is CPU time of the processes involved, which equals wall-clock time
on a core of their own. Repetitions of one measurement are spread over time, between those of others, so that a
disturbance of a second spoils few of each, and medians leave these out. Where other programs, or other virtual machines
of the host, used the cores meanwhile, a measurement is repeated (`disturbance`).
"""
