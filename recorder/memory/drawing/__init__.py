"""Drawing of a graph as SVG: layout, edges, nodes and style; `picture` assembles them."""
