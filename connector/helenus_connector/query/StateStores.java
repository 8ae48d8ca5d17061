package helenus;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec;
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo;
import org.apache.spark.sql.execution.streaming.runtime.IncrementalExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.state.NoPrefixKeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.PrefixKeyScanStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.StateStore;
import org.apache.spark.sql.execution.streaming.state.StateStore$;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreMetrics;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.internal.SessionState;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.hash.Murmur3_x86_32;
import scala.Option;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The stores of a query whose only state is one map of bytes by bytes, grouped by an int: those of the batch that Spark has
 * planned, for who does it without the job that Spark would run.
 *
 * <p>That job has a task for each store, which opens it as it was before the batch, reads and writes in it, and commits.
 * This does the same, by the same calls, in the driver: each store must have what the batch left, also one of which it
 * changed nothing. The rows in it are those of Spark's map state.
 */
public final class StateStores {
    private static final int SEED = 42; // of Spark's hash partitioning
    private static final int GET = 0;
    private static final int PUT = 1;
    private static final int REMOVE = 2;
    private static final String NAMESPACE = StateStoreId.DEFAULT_STORE_NAME();
    private static final String BYTES_IN_FILES = "rocksdbSstFileSize";

    private final StreamingQueryWrapper query;
    private final String name;
    private final StructType keys; // of a store's rows: the place, and the map's key
    private final StructType values;
    private final UnsafeProjection encodeKey;
    private final UnsafeProjection encodeValue;
    private StateStoreConf settings;
    private Configuration hadoop;
    private StateStore[] stores;

    /** Of a run of a query: `name` is the map's, and its columns are `key` and `value`; `place` is what groups it. */
    public StateStores(StreamingQuery query, String name, String place) {
        this.query = (StreamingQueryWrapper) query;
        this.name = name;
        this.keys = new StructType()
                .add("key", new StructType().add(place, DataTypes.IntegerType))
                .add("userKey", new StructType().add("key", DataTypes.BinaryType));
        this.values = new StructType().add("value", DataTypes.BinaryType);
        this.encodeKey = UnsafeProjection.create(keys);
        this.encodeValue = UnsafeProjection.create(values);
    }

    /**
     * Whether the stores are as expected, of a query that has planned a batch: a commit of Spark's may name the versions of
     * its stores, which a job tells.
     */
    public boolean areKnown() {
        IncrementalExecution execution = query.streamingQuery().lastExecution();
        StatefulOperatorStateInfo info = execution == null ? null : stateOf(execution.executedPlan());
        return info != null
                && info.stateStoreCkptIds().isEmpty()
                && !StatefulOperatorStateInfo.enableStateStoreCheckpointIds(
                        execution.sparkSession().sessionState().conf());
    }

    /** Opens the stores of the batch that Spark has planned, as they were before it. */
    public void open() {
        IncrementalExecution execution = query.streamingQuery().lastExecution();
        StatefulOperatorStateInfo info = stateOf(execution.executedPlan());
        if (settings == null) {
            SessionState session = execution.sparkSession().sessionState();
            settings = new StateStoreConf(session.conf(), Map$.MODULE$.empty());
            hadoop = session.newHadoopConf();
        }
        stores = new StateStore[info.numPartitions()];
        for (int number = 0; number < stores.length; number++) {
            stores[number] = open(info, number); // before anything else is done with it, so that `abort` knows it
            stores[number].createColFamilyIfAbsent(
                    name, keys, values, new PrefixKeyScanStateEncoderSpec(keys, 1), false, false);
        }
    }

    private StateStore open(StatefulOperatorStateInfo info, int number) {
        StructType key = new StructType().add("key", DataTypes.BinaryType); // as the operator's: its maps have their own
        return StateStore$.MODULE$.get(
                new StateStoreProviderId(
                        new StateStoreId(info.checkpointLocation(), info.operatorId(), number, NAMESPACE),
                        info.queryRunId()),
                key,
                values,
                new NoPrefixKeyStateEncoderSpec(key),
                info.storeVersion(),
                Option.empty(),
                info.stateSchemaMetadata(),
                true,
                settings,
                hadoop,
                true);
    }

    private static StatefulOperatorStateInfo stateOf(SparkPlan plan) {
        if (plan instanceof TransformWithStateInPySparkExec operator) {
            return operator.stateInfo().getOrElse(() -> null);
        }
        for (SparkPlan child : CollectionConverters.asJava(plan.children())) {
            StatefulOperatorStateInfo info = stateOf(child);
            if (info != null) {
                return info;
            }
        }
        return null;
    }

    /**
     * Does what is asked for a place: a byte says what, four are the place, and then come byte strings, each after its
     * size, of four bytes: keys, and where values are put, keys and values in turns. The answer has the values of keys in
     * the same way, with a size of -1 where there is none.
     */
    public byte[] answer(byte[] question) throws IOException {
        DataInputStream asked = new DataInputStream(new ByteArrayInputStream(question));
        int what = asked.readByte();
        int place = asked.readInt();
        StateStore store = stores[Math.floorMod(Murmur3_x86_32.hashInt(place, SEED), stores.length)];
        InternalRow group = row(place);
        ByteArrayOutputStream answered = new ByteArrayOutputStream();
        DataOutputStream answer = new DataOutputStream(answered);
        while (asked.available() > 0) {
            UnsafeRow key = encodeKey.apply(row(group, row(read(asked))));
            switch (what) {
                case GET -> write(answer, store.get(key, name));
                case PUT -> store.put(key, encodeValue.apply(row(read(asked))), name);
                case REMOVE -> store.remove(key, name);
                default -> throw new IOException("no question " + what);
            }
        }
        return answered.toByteArray();
    }

    private static InternalRow row(Object... columns) {
        return new GenericInternalRow(columns);
    }

    private static byte[] read(DataInputStream from) throws IOException {
        byte[] bytes = new byte[from.readInt()];
        from.readFully(bytes);
        return bytes;
    }

    private static void write(DataOutputStream to, UnsafeRow value) throws IOException {
        if (value == null) {
            to.writeInt(-1);
            return;
        }
        byte[] bytes = value.getBinary(0);
        to.writeInt(bytes.length);
        to.write(bytes);
    }

    /** Commits all stores, and returns how many bytes they have in files and in memory. */
    public long commit() {
        long bytes = 0;
        for (StateStore store : stores) {
            store.commit();
            StateStoreMetrics metrics = store.metrics();
            bytes += metrics.memoryUsedBytes();
            for (Map.Entry<StateStoreCustomMetric, Object> metric :
                    CollectionConverters.asJava(metrics.customMetrics()).entrySet()) {
                bytes += metric.getKey().name().equals(BYTES_IN_FILES) ? (Long) metric.getValue() : 0;
            }
        }
        stores = null;
        return bytes;
    }

    /**
     * Leaves all stores as they were, of those that are not committed: nothing if none is open. What one throws, this throws
     * once all are closed: an open one would hold up the next job.
     */
    public void abort() {
        StateStore[] open = stores;
        stores = null;
        RuntimeException failure = null;
        for (StateStore store : open == null ? new StateStore[0] : open) {
            try {
                if (store != null && !store.hasCommitted()) {
                    store.abort();
                }
            } catch (RuntimeException failed) {
                failure = failed;
            }
        }
        if (failure != null) {
            throw failure;
        }
    }
}
