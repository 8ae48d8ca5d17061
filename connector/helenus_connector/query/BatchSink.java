package helenus;

import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** By which Spark finds the {@link BatchHandover} that a writer's option `handover` names. */
public final class BatchSink implements StreamSinkProvider {
    @Override
    public Sink createSink(
            SQLContext context, Map<String, String> options, Seq<String> partitionColumns, OutputMode outputMode) {
        return BatchHandover.take(CollectionConverters.asJava(options).get("handover"));
    }
}
