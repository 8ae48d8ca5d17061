#!/bin/sh
# As the official one: writes the container's address into cassandra.yaml, and goes on as the user cassandra.
set -e
address=$(hostname -i)
sed -i '/^\(listen_address\|rpc_address\|broadcast_rpc_address\|cluster_name\|seed_provider\):/d' /etc/cassandra/cassandra.yaml
cat >> /etc/cassandra/cassandra.yaml <<YAML
cluster_name: ${CASSANDRA_CLUSTER_NAME:-Test Cluster}
listen_address: $address
rpc_address: 0.0.0.0
broadcast_rpc_address: $address
seed_provider: [{class_name: org.apache.cassandra.locator.SimpleSeedProvider, parameters: [{seeds: $address}]}]
YAML
printf 'dc=%s\nrack=%s\n' "$CASSANDRA_DC" "$CASSANDRA_RACK" > /etc/cassandra/cassandra-rackdc.properties
chown -R cassandra:cassandra /var/lib/cassandra
exec setpriv --reuid=999 --regid=999 --clear-groups /opt/java/bin/java -Xms$MAX_HEAP_SIZE -Xmx$MAX_HEAP_SIZE \
  $(cat /opt/cassandra/lib/modules) -javaagent:$(ls /opt/cassandra/lib/jamm-*.jar) -Djdk.attach.allowAttachSelf=true \
  -Dcassandra-foreground=yes -Dio.netty.tryReflectionSetAccessible=true -Dcassandra.config=file:///etc/cassandra/cassandra.yaml \
  -Dcassandra.storagedir=/var/lib/cassandra -Dlogback.configurationFile=/etc/cassandra/logback.xml \
  -Dcassandra.skip_wait_for_gossip_to_settle=0 -Dcassandra.ring_delay_ms=100 \
  -cp "/etc/cassandra:/opt/cassandra/lib/*" org.apache.cassandra.service.CassandraDaemon
