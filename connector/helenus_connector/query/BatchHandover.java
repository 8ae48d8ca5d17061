package helenus;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.streaming.StreamingQuery;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The sink of a query, which hands each batch to the Python thread that asks for the next one, as Spark has planned it.
 *
 * <p>With `foreachBatch` Spark would plan the batch's rows once more, for whatever becomes of them; and PySpark's has Java
 * call Python, for which Python listens on a port that takes calls from anybody on the machine.
 */
public final class BatchHandover implements Sink {
    private static final String NUMBER = "helenus.batch"; // a local property of the batch's job
    private static final Map<String, BatchHandover> WAITING = new ConcurrentHashMap<>();
    private static final AtomicLong COUNT = new AtomicLong();
    private static final long LOOK_MS = 500; // how long the end of a query may go unnoticed

    private final String name = "handover-" + COUNT.incrementAndGet();
    private final SparkContext spark;
    private final SynchronousQueue<Batch> offered = new SynchronousQueue<>();
    private final long fetchLimitMs; // after which Spark takes any other process for gone that does not answer
    private volatile Batch current;
    private volatile String abandoned;

    public BatchHandover(SparkContext spark) {
        this.spark = spark;
        this.fetchLimitMs = spark.getConf().getTimeAsMs("spark.network.timeout", "120s");
        WAITING.put(name, this);
    }

    /** By which the writer's option `handover` names it, for one query. */
    @Override
    public String name() {
        return name;
    }

    static BatchHandover take(String name) {
        BatchHandover handover = name == null ? null : WAITING.remove(name);
        if (handover == null) {
            throw new IllegalStateException("No thread of Python takes batches as " + name);
        }
        return handover;
    }

    private static final class Batch {
        final long number;
        final Dataset<Row> frame;
        final Properties properties;
        final CountDownLatch ended = new CountDownLatch(1);
        volatile String error;

        Batch(long number, Dataset<Row> frame, Properties properties) {
            this.number = number;
            this.frame = frame;
            this.properties = properties;
        }

        void end(String error) {
            this.error = error;
            ended.countDown();
        }
    }

    /**
     * In the query's thread: returns when Python has done the batch. Raises its error, as text; or that Python fetches no
     * batches any more.
     */
    @Override
    public void addBatch(long number, Dataset<Row> frame) {
        planParts(frame.queryExecution().executedPlan());
        try {
            await(new Batch(number, frame, copied(spark.getLocalProperties())));
        } catch (InterruptedException stopped) { // what Spark takes for the end of a query that it stops
            throw new UncheckedIOException(new InterruptedIOException("the query is stopped"));
        }
    }

    /** Has the batch's source say what its tasks read: Spark asks when it makes a job of the batch, if not before. */
    private static void planParts(SparkPlan plan) {
        if (plan instanceof MicroBatchScanExec scan) {
            scan.inputPartitions();
        }
        CollectionConverters.asJava(plan.children()).forEach(BatchHandover::planParts);
    }

    private void await(Batch batch) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(fetchLimitMs);
        while (!offered.offer(batch, LOOK_MS, TimeUnit.MILLISECONDS)) {
            if (abandoned != null) {
                throw new IllegalStateException(abandoned);
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(
                        "Python has not fetched a batch for " + fetchLimitMs / 1000 + " s (spark.network.timeout)");
            }
        }
        // A query that is stopped interrupts this thread, and cancels the jobs of the batch. Python still has to see that
        // they ended: until then no other batch may begin.
        boolean interrupted = false;
        while (true) {
            try {
                batch.ended.await();
                break;
            } catch (InterruptedException stopped) {
                interrupted = true;
            }
        }
        if (interrupted) {
            throw new InterruptedException();
        }
        if (batch.error != null) {
            throw new RuntimeException(batch.error);
        }
    }

    /**
     * In the thread of Java that serves Python's: ends the batch before, with its error if it has one, and waits for the
     * next. Returns its number, or -1 once the query has ended. Jobs of this thread are then of that batch: in its pool,
     * and cancelled with its query.
     */
    public long next(StreamingQuery query, String error) throws InterruptedException {
        endCurrent(error);
        Batch batch;
        do {
            batch = offered.poll(LOOK_MS, TimeUnit.MILLISECONDS);
        } while (batch == null && query.isActive() && abandoned == null);
        if (batch == null) {
            return -1;
        }
        spark.setLocalProperties(batch.properties);
        synchronized (this) {
            if (abandoned != null) { // Python does not get this answer
                batch.end(abandoned);
                return -1;
            }
            current = batch;
        }
        return batch.number;
    }

    /**
     * Python can't fetch batches any more, and processes none: ends the batch that it had with this error, and those to
     * come. Returns whether it had one, so that the query ends with the error.
     */
    public synchronized boolean abandon(String error) {
        abandoned = error;
        return endCurrent(error);
    }

    private synchronized boolean endCurrent(String error) {
        Batch batch = current;
        if (batch == null) {
            return false;
        }
        current = null;
        batch.end(error);
        return true;
    }

    /** The rows of the batch that Python has. */
    public Dataset<Row> frame() {
        return current.frame;
    }

    /**
     * The only column of the rows of the batch that Python has, of bytes: each after its length, of four bytes. The tasks
     * that make the rows see the batch's number.
     */
    public byte[] collect() throws IOException {
        Batch batch = current;
        spark.setLocalProperty(NUMBER, Long.toString(batch.number));
        ByteArrayOutputStream collected = new ByteArrayOutputStream();
        DataOutputStream rows = new DataOutputStream(collected);
        for (Row row : batch.frame.collectAsList()) {
            byte[] column = row.getAs(0);
            rows.writeInt(column.length);
            rows.write(column);
        }
        return collected.toByteArray();
    }

    private static Properties copied(Properties properties) {
        Properties copy = new Properties();
        for (String name : properties.stringPropertyNames()) {
            copy.setProperty(name, properties.getProperty(name));
        }
        return copy;
    }
}
