#!/bin/sh
# Starts or resumes run NAME, and waits after its end, because Kubernetes would start it again.
#   start.sh NAME           start the run, or resume it
#   start.sh NAME standby   stand by for the run's coordinator; the first one starts the run
rm -f "$ESPALIER_ALIVE"  # of an earlier container of this pod
how=--or-resume
[ "$2" = standby ] && [ -e "runs/$1/run.sqlite" ] && how=--standby
coordinator start --config "$(dirname "$0")/run.toml" --name "$1" $how &
pid=$!
trap 'kill "$pid" 2>/dev/null || exit 0' TERM
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do  # the signal interrupted `wait`
    wait "$pid"
    code=$?
done
[ $code = 0 ] || exit $code
pid=
echo "run '$1' has ended; to resume it, delete this pod"
while :; do
    touch "$ESPALIER_ALIVE"
    sleep 10 &
    wait $!
done
