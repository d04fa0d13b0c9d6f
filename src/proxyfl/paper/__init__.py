"""The paper's tables and figures by name: the runs each needs, at which scale, and how it is made of them."""
