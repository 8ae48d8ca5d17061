package helenus;

import java.io.BufferedOutputStream;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.api.python.SimplePythonFunction;
import org.apache.spark.util.CollectionAccumulator;

/** PySpark's `mapPartitions(function).collect()` in one call, over a file and into a file. */
public final class Job {
    private final JavaSparkContext spark;
    private final Map<String, String> environment;
    private final List<String> includes;
    private final String python;
    private final String version;
    private final CollectionAccumulator<byte[]> accumulator;

    /** With what PySpark gives to each function. */
    public Job(
            JavaSparkContext spark,
            Map<String, String> environment,
            List<String> includes,
            String python,
            String version,
            CollectionAccumulator<byte[]> accumulator) {
        this.spark = spark;
        this.environment = environment;
        this.includes = includes;
        this.python = python;
        this.version = version;
        this.accumulator = accumulator;
    }

    /**
     * Runs a pickled function over what a file has for each task, and writes what it yields into another file. Both
     * have rows as PySpark's files do: four bytes of length, and the row.
     *
     * <p>By `collectAsync`: for `collect`, Spark parses its two largest classes in each job, to see what functions of
     * its own refer to.
     */
    public void run(String given, int tasks, byte[] command, String found) throws Exception {
        PythonFunction function = new SimplePythonFunction(
                command, environment, includes, python, version, List.of(), accumulator);
        JavaRDD<byte[]> rows = PythonRDD.readRDDFromFile(spark, given, tasks);
        List<byte[]> results;
        try {
            results = new PythonRDD(rows.rdd(), function, false, false).asJavaRDD().collectAsync().get();
        } catch (ExecutionException failed) {
            throw failed.getCause() instanceof Exception cause ? cause : failed;
        }
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(found)))) {
            for (byte[] row : results) {
                out.writeInt(row.length);
                out.write(row);
            }
        }
    }
}
