"""How a graph is drawn: places, curves, words and colours. `recorder.memory.drawing.picture` puts them together."""
