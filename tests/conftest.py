"""What holds for all tests."""

import signal

# A test run in a shell's background ignores Ctrl-C, and so would the commands under test. With a handler here they
# start with the default again.
signal.signal(signal.SIGINT, signal.default_int_handler)
