package helenus;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The stream of a query's events, without rows: the batch's job reads them. Its offsets are JSON's text, as those of a
 * source in Python, which has the same checkpoint.
 */
public final class EventsSource implements TableProvider {
    private static final StructType ROWS = new StructType().add("place", "int");

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return ROWS;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new Events();
    }

    private static final class Events implements SupportsRead {
        @Override
        public String name() {
            return "helenus-events";
        }

        @Override
        public StructType schema() {
            return ROWS;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            BatchPlanning planning = BatchPlanning.named(options.get("planning"));
            return () -> new EventsScan(planning);
        }
    }

    private record EventsScan(BatchPlanning planning) implements Scan {
        @Override
        public StructType readSchema() {
            return ROWS;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new EventsStream(planning);
        }
    }

    private static final class TextOffset extends Offset {
        private final String json;

        TextOffset(String json) {
            this.json = json;
        }

        @Override
        public String json() {
            return json;
        }
    }

    private record EventsStream(BatchPlanning planning) implements MicroBatchStream, SupportsAdmissionControl {
        @Override
        public Offset initialOffset() {
            return new TextOffset(planning.ask("[\"initial\"]"));
        }

        @Override
        public ReadLimit getDefaultReadLimit() {
            return ReadLimit.allAvailable(); // the planner knows the query's own
        }

        @Override
        public Offset latestOffset() {
            throw new UnsupportedOperationException("latestOffset without a start");
        }

        @Override
        public Offset latestOffset(Offset start, ReadLimit limit) {
            return new TextOffset(planning.ask("[\"latest\"," + start.json() + "]"));
        }

        @Override
        public Offset deserializeOffset(String json) {
            return new TextOffset(json);
        }

        @Override
        public InputPartition[] planInputPartitions(Offset start, Offset end) {
            planning.ask("[\"parts\"," + start.json() + "," + end.json() + "]");
            return new InputPartition[0];
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return partition -> {
                throw new UnsupportedOperationException("a stream without rows");
            };
        }

        @Override
        public void commit(Offset end) {
            planning.ask("[\"commit\"," + end.json() + "]");
        }

        @Override
        public void stop() {
            planning.close("the query has ended");
        }
    }
}
