"""How a graph is drawn: places, curves, words and colours. `recorder.memory.svg` puts them together."""
