#!/bin/sh
exec /opt/java/bin/java -XX:TieredStopAtLevel=1 -Xmx64m -cp "/opt/kafka/libs/*" org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
