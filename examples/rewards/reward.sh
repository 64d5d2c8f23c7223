#!/bin/sh
# A reward program of a shell and jq: 1 for the ground truth in the last \boxed{..}. In a YAML: exec: examples/rewards/reward.sh
exec jq --unbuffered -c '{id, score: (if ([.response | scan("\\\\boxed\\{([^{}]*)\\}")[0]] | last) == (.ground_truth | tostring) then 1 else 0 end)}'
