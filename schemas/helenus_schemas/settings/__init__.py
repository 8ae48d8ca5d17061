"""Settings from properties files.

- `properties`: reading a file; `ConfigError`, which names every wrong key at once.
- `model`: `Settings`, the base of every command's configuration.
- `fields`: the types of fields, with checks of hosts, URLs, topics and others.
- `shared`: the settings that several commands share.
- `debezium`: a file of Debezium's, as ours.
- `masking`: references to secrets, and which values are never shown.
- `data_sink`: the address of a data sink, which comes from a statement or a table.
- `named_class`: classes of users' own, as `package.module:Name`.
- `regular_files`: files that are opened by names from elsewhere.
"""
