#!/bin/bash
# croll score detection gives 500 generated detections (score_detection.py: boxes that touch, nest, repeat, have wrong labels, lists
# that are cut off or written otherwise) the reward of a loop in float64, with each det_iou_threshold.
# Not covered: rows that are refused (unit/rewards_vision).
. tests/e2e/run.inc
python3 tests/e2e/score_detection.py lines >$tmp/lines
"$CROLL" score detection <$tmp/lines >$tmp/answers 2>$tmp/err || { cat $tmp/err; fail "exit code $?"; }
python3 tests/e2e/score_detection.py check average <$tmp/answers || fail "other rewards"
cp tests/roll/base.yaml $tmp
for threshold in dynamic 0.5 0.99; do
    sed "s/THRESHOLD/$threshold/" >$tmp/job.yaml <<'END'
defaults:
  - base@_here_
max_steps: 100
actor_train:
  strategy_args: {strategy_name: fsdp2_train}
  device_mapping: list(range(0,4))
rewards:
  cv:
    worker_cls: roll.pipeline.rlvr.rewards.detection_reward_worker.DetectionRewardWorker
    det_iou_threshold: THRESHOLD
    tag_included: [v3det_train]
END
    "$CROLL" score cv --config $tmp/job.yaml <$tmp/lines >$tmp/answers 2>$tmp/err || { cat $tmp/err; fail "$threshold: exit code $?"; }
    python3 tests/e2e/score_detection.py check $threshold <$tmp/answers || fail "$threshold: other rewards"
done
