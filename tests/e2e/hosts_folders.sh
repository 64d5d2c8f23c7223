#!/bin/bash
# Folders of a run on two hosts (tests/tools/rig): a rank whose output_dir or folder of checkpoints is not the launcher's
# says so before anything is written, also where another try has left the same folder there.
# mostly waits
. tests/e2e/run.inc
. tests/e2e/rig.inc
rig_up 2
mark=h1:0123456789abcdef
actor() { # OUTPUT_DIR: two actor ranks; exit code in $code
    log=$tmp/log code=0
    on h1:1,h2:1 2 -x CROLL_EXCHANGE_URL=redis://10.77.0.1:1 "$CROLL" actor $1/config.yaml --mark $mark >$log 2>&1 || code=$?
}
job() { # OUTPUT_DIR CHECKPOINTS: what a launcher on h1 makes there
    rig in h1 sh -c "mkdir -p $1 $2 && printf %s $mark >$1/.croll-run && printf %s $mark >$2/.croll-run &&
        sed 's|^output_dir:.*||' configs/quickstart/rlvr.yaml >$1/config.yaml &&
        printf 'output_dir: %s\ncheckpoint_config: {type: file_system, output_dir: %s}\nexchange: {timeout: 1}\n' $1 $2 >>$1/config.yaml"
}
refused() { # KEY FOLDER
    [ $code = 2 ] && grep -q "^actor rank 1 on h2: $1 $2 is not the folder that the launcher on h1 has there" $log || fail "$1 $2: exit code $code"
}
job /mnt/own/out /mnt/own/out
actor /mnt/own/out
refused output_dir /mnt/own/out
rig in h1 tar -C /mnt/own -cf - out | rig in h2 tar -C /mnt/own -xf - # of another try
rig in h2 sh -c 'printf h1:0000000000000000 >/mnt/own/out/.croll-run; mkdir -p /mnt/own/out/checkpoint-1.tmp/state'
actor /mnt/own/out
refused output_dir /mnt/own/out
job /mnt/shared/out /mnt/own/saves
actor /mnt/shared/out
refused checkpoint_config.output_dir /mnt/own/saves
[ -z "$(rig in h2 find /mnt/own/out -newer /mnt/own/out/.croll-run -type f)" ] || fail "files were written on h2"
# all shared: the ranks go on, and look for their configuration's data and the exchange
job /mnt/shared/out /mnt/shared/saves
actor /mnt/shared/out
! grep 'is not the folder' $log || fail "a shared folder is refused"
echo ok
