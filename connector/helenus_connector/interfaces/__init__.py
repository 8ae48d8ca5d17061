"""The three interfaces of the pipeline: `gate`, `resolver`, `shape`; and `image`, a row that passes between them."""
