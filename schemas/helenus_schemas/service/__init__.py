"""What every process needs.

- `logs`: structured logs, with levels that may change at run time.
- `monitoring`: metrics and health checks over HTTP. `page`: the page for browsers.
- `connections`: a listening socket with bounds.
- `listener_tls`: its certificates. `descriptors`: how many files a process may have open.
- `durable`: files that survive a crash. `ownership`: directories and locks that no other user may change.
- `cassandra`: a driver session from settings.
- `spans`: those of OpenTelemetry, as data. `span_exporter`: sends them, if traces are switched on.
- `ending`: what SIGTERM and Ctrl-C do.
- `failpoints`: points at which tests kill the process.
"""
