#!/bin/bash
# tests/fuzz/link.py: 1,000 changed sets of messages of solutions to their tests ($CROLL_LINK_RUNS for more) pass no test. The process of the tests
# runs here without a sandbox. Not covered: what passes because a test accepts it (docs/sandbox.md).
set -eu
timeout $((500 * ${CROLL_TESTS_SLOWER:-1})) python3 -B tests/fuzz/link.py ${CROLL_LINK_RUNS:-1000}
