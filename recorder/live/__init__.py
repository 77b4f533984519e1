"""Live replays: a browser of its own behind a filtering proxy does the steps of a session again. Spec §4.6.

`proxy` decides where the browser may connect to, `browser` starts it in a process without rights and secrets,
`browser_process` is that process, `step_loop` does the steps of one replay, `claimed_replay` claims replays
and stores their results.
"""
