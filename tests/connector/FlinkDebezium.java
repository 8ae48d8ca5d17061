import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.debezium.DebeziumJsonDeserializationSchema;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.types.DataType;
import org.apache.flink.util.Collector;

/**
 * Flink's own reader of its format `debezium-json`, as its Kafka connector uses it. The first argument is `true` for
 * values that carry their schema (`debezium-json.schema-include`); the others are the table's columns, `name:INT` or
 * `name:STRING`. A line in is a record's value, an empty one no value; the line out has the rows that Flink makes of it,
 * each with its kind, or `error` and why.
 */
public class FlinkDebezium {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<DataTypes.Field> columns = new ArrayList<>();
        for (String column : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            String[] parts = column.split(":");
            columns.add(DataTypes.FIELD(parts[0], parts[1].equals("INT") ? DataTypes.INT() : DataTypes.STRING()));
        }
        DataType row = DataTypes.ROW(columns.toArray(new DataTypes.Field[0]));
        DebeziumJsonDeserializationSchema reader = new DebeziumJsonDeserializationSchema(
                row, List.of(), TypeInformation.of(RowData.class), Boolean.parseBoolean(arguments[0]), false, TimestampFormat.ISO_8601);
        reader.open(null);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            List<String> rows = new ArrayList<>();
            try {
                reader.deserialize(line.isEmpty() ? null : line.getBytes(StandardCharsets.UTF_8), new Collector<RowData>() {
                    @Override
                    public void collect(RowData found) {
                        rows.add(found.getRowKind().shortString() + " " + values((GenericRowData) found));
                    }

                    @Override
                    public void close() {
                    }
                });
                out.println(String.join("; ", rows));
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                out.println("error " + cause.getMessage().split("\n")[0]);
            }
        }
    }

    static String values(GenericRowData row) {
        List<Object> found = new ArrayList<>();
        for (int i = 0; i < row.getArity(); i++) {
            found.add(row.getField(i));
        }
        return found.stream().map(String::valueOf).collect(Collectors.joining(","));
    }
}
