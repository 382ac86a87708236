"""One activation: the DoFn, the context, the steps, the event loop."""
