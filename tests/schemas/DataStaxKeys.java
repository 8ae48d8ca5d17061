import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigInteger;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.HexFormat;
import java.util.UUID;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;

/**
 * A key column as DataStax CDC 2.3.9 makes it. The Java value is Cassandra's of the CQL bytes (its serializers), the Avro
 * is that of `PulsarMutationSender.cqlToAvro` and the conversions of `CqlLogicalTypes`, the JSON that of
 * `NativeJsonConverter.toJson`. A line in is `type hex`, and there is one out for each: `hex JSON`.
 */
public class DataStaxKeys {
    static final Schema DECIMAL = new Schema.Parser().parse(
            "{\"type\":\"record\",\"name\":\"cql_decimal\",\"fields\":[{\"name\":\"bigint\",\"type\":\"bytes\"},"
            + "{\"name\":\"scale\",\"type\":\"int\"}]}");

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ObjectMapper mapper = new ObjectMapper();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split(" ", 2);
            byte[] data = HexFormat.of().parseHex(parts[1]);
            Object value = value(parts[0], ByteBuffer.wrap(data));
            Schema schema = schema(parts[0]);
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
            new GenericDatumWriter<Object>(schema).write(value, encoder);
            encoder.flush();
            ObjectNode node = JsonNodeFactory.withExactBigDecimals(true).objectNode();
            node.set("k", json(value));
            byte[] text = mapper.writeValueAsBytes(node);
            out.println(HexFormat.of().formatHex(bytes.toByteArray()) + " " + new String(text, StandardCharsets.UTF_8));
        }
    }

    static Object value(String type, ByteBuffer data) throws Exception {
        switch (type) {
            case "ascii", "text": return new String(data.array(), StandardCharsets.UTF_8);
            case "blob": return data;
            case "boolean": return data.get() != 0;
            case "tinyint": return Byte.toUnsignedInt(data.get());
            case "smallint": return Short.toUnsignedInt(data.getShort());
            case "int": return data.getInt();
            case "bigint", "timestamp": return data.getLong();
            case "time": return data.getLong() / 1000;
            case "date":
                Instant day = Instant.ofEpochMilli(Duration.ofDays(data.getInt() + Integer.MIN_VALUE).toMillis());
                return (int) LocalDateTime.ofInstant(day, ZoneOffset.UTC).toLocalDate().toEpochDay();
            case "float": return data.getFloat();
            case "double": return data.getDouble();
            case "uuid", "timeuuid": return new UUID(data.getLong(), data.getLong()).toString();
            case "inet": return InetAddress.getByAddress(data.array()).getHostAddress();
            case "varint": return ByteBuffer.wrap(new BigInteger(data.array()).toByteArray());
            case "decimal":
                GenericRecord record = new GenericData.Record(DECIMAL);
                record.put("scale", data.getInt());
                byte[] unscaled = new byte[data.remaining()];
                data.get(unscaled);
                record.put("bigint", ByteBuffer.wrap(new BigInteger(unscaled).toByteArray()));
                return record;
            default: throw new IllegalArgumentException(type);
        }
    }

    static Schema schema(String type) {
        switch (type) {
            case "blob", "varint": return Schema.create(Schema.Type.BYTES);
            case "boolean": return Schema.create(Schema.Type.BOOLEAN);
            case "tinyint", "smallint", "int", "date": return Schema.create(Schema.Type.INT);
            case "bigint", "timestamp", "time": return Schema.create(Schema.Type.LONG);
            case "float": return Schema.create(Schema.Type.FLOAT);
            case "double": return Schema.create(Schema.Type.DOUBLE);
            case "decimal": return DECIMAL;
            default: return Schema.create(Schema.Type.STRING);
        }
    }

    static JsonNode json(Object value) {
        JsonNodeFactory nodes = JsonNodeFactory.withExactBigDecimals(true);
        if (value instanceof Integer number) return nodes.numberNode(number);
        if (value instanceof Long number) return nodes.numberNode(number);
        if (value instanceof Float number) return nodes.numberNode(number);
        if (value instanceof Double number) return nodes.numberNode(number);
        if (value instanceof Boolean flag) return nodes.booleanNode(flag);
        if (value instanceof ByteBuffer bytes) return nodes.binaryNode(bytes.array());
        if (value instanceof GenericRecord record) {
            return nodes.objectNode().put("bigint", ((ByteBuffer) record.get("bigint")).array())
                    .put("scale", (Integer) record.get("scale"));
        }
        return nodes.textNode(value.toString());
    }
}
