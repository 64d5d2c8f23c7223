#!/bin/bash
# croll score code judges 200 generated tasks, 500 in scripts/check_long (score_code_tasks.py: functions, classes, generators, exceptions, programs with stdin;
# right, wrong, slow, crashing) as plain execution does. Not covered: code_url (e2e/run_code), what docs/sandbox.md says is
# judged otherwise on purpose.
# also long: CROLL_TASKS=500
. tests/e2e/run.inc
reason=$("$CROLL" score code </dev/null 2>&1) || { echo "skipped: $reason"; exit 77; }
python3 tests/e2e/score_code_tasks.py lines $tmp/plain >$tmp/lines
"$CROLL" score code <$tmp/lines >$tmp/answers 2>$tmp/err || { cat $tmp/err; fail "exit code $?"; }
python3 tests/e2e/score_code_tasks.py check $tmp/plain <$tmp/answers || fail "other verdicts"
