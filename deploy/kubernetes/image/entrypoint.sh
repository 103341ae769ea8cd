#!/bin/bash
# Runs what it is given; `executor`, as Spark's driver starts its pods, becomes an executor of the Spark that pip installed.
set -euo pipefail
if [ "${1:-}" != executor ]; then exec "$@"; fi

home=$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
options=()
for name in $(compgen -A variable SPARK_JAVA_OPT_ | sort -t_ -k4n); do options+=("${!name}"); done
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$home/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" \
  --podName "${SPARK_EXECUTOR_POD_NAME:-}"
