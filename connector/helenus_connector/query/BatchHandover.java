package helenus;

import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.api.java.function.VoidFunction2;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.streaming.StreamingQuery;

/**
 * The function of a query's `foreachBatch`: it hands each batch to the Python thread that asks for the next one.
 *
 * <p>PySpark's own has Java call Python, for which Python listens on a port that takes calls from anybody on the machine.
 */
public final class BatchHandover implements VoidFunction2<Dataset<Row>, Long> {
    private static final long LOOK_MS = 500; // how long the end of a query may go unnoticed

    private final transient SparkContext spark;
    private final transient SynchronousQueue<Batch> offered = new SynchronousQueue<>();
    private volatile Batch current;

    public BatchHandover(SparkContext spark) {
        this.spark = spark;
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
    }

    /** In the query's thread: returns when Python has done the batch. Raises its error, as text. */
    @Override
    public void call(Dataset<Row> frame, Long number) throws Exception {
        Batch batch = new Batch(number, frame, copied(spark.getLocalProperties()));
        offered.put(batch);
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
        Batch before = current;
        if (before != null) {
            current = null;
            before.error = error;
            before.ended.countDown();
        }
        Batch batch;
        do {
            batch = offered.poll(LOOK_MS, TimeUnit.MILLISECONDS);
        } while (batch == null && query.isActive());
        if (batch == null) {
            return -1;
        }
        spark.setLocalProperties(batch.properties);
        current = batch;
        return batch.number;
    }

    /** The rows of the batch that Python has. */
    public Dataset<Row> frame() {
        return current.frame;
    }

    private static Properties copied(Properties properties) {
        Properties copy = new Properties();
        for (String name : properties.stringPropertyNames()) {
            copy.setProperty(name, properties.getProperty(name));
        }
        return copy;
    }
}
