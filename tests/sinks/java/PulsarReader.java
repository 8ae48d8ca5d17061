import com.datastax.oss.cdc.MutationValue;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.impl.schema.KeyValueSchemaInfo;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * URL TOPIC auto|typed|mutations: what Java's readers make of a topic, a line of JSON for each message.
 * URL TOPIC chunks: the SHA-256 of each message's whole value, null where its chunks are gone.
 * URL TOPIC write KEYSCHEMA KEY: a DataStax agent's event.
 */
public class PulsarReader {
    public static class Typed {
        public static class t {
            public String a;
            public String c;
        }
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[0]).build()) {
            switch (arguments[2]) {
                case "auto" -> read(client, arguments[1], Schema.AUTO_CONSUME());
                case "typed" -> read(client, arguments[1],
                        Schema.KeyValue(Schema.AUTO_CONSUME(), Schema.AVRO(Typed.t.class), KeyValueEncodingType.SEPARATED));
                case "mutations" -> read(client, arguments[1],
                        Schema.KeyValue(Schema.AUTO_CONSUME(), Schema.AVRO(MutationValue.class), KeyValueEncodingType.SEPARATED));
                case "chunks" -> readWhole(client, arguments[1]);
                case "write" -> write(client, arguments[1], arguments[3], arguments[4]);
                default -> throw new IllegalArgumentException(arguments[2]);
            }
        }
    }

    static <T> void read(PulsarClient client, String topic, Schema<T> schema) throws Exception {
        try (Reader<T> reader = client.newReader(schema).topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<T> message = reader.readNext(20, TimeUnit.SECONDS);
                byte[] version = message.getSchemaVersion();
                long number = version == null ? -1 : ByteBuffer.wrap(version).getLong();
                System.out.println("{\"version\":" + number + ",\"record\":" + json(message.getValue()) + ",\"properties\":"
                        + properties(message) + "}");
            }
        }
    }

    static void readWhole(PulsarClient client, String topic) throws Exception {
        var whole = new helenus.PulsarChunkReader(client);
        var small = new helenus.PulsarChunkReader(client, 1000);
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            while (reader.hasMessageAvailable()) {
                Message<byte[]> message = reader.readNext(20, TimeUnit.SECONDS);
                System.out.println("{\"key\":" + json(message.getKey()) + ",\"sha256\":" + sha256(whole, message)
                        + ",\"limited\":" + sha256(small, message) + "}");
            }
        }
    }

    static String sha256(helenus.PulsarChunkReader reader, Message<byte[]> message) throws Exception {
        try {
            byte[] value = reader.read(message);
            return value == null ? "null" : json(HexFormat.of().formatHex(
                    java.security.MessageDigest.getInstance("SHA-256").digest(value)));
        } catch (IllegalArgumentException error) {
            return json(error.getMessage());
        }
    }

    static void write(PulsarClient client, String topic, String keySchema, String key) throws Exception {
        Schema<byte[]> keys = Schema.NATIVE_AVRO(
                new org.apache.pulsar.shade.org.apache.avro.Schema.Parser().parse(keySchema));
        Schema<KeyValue<byte[], MutationValue>> schema =
                Schema.KeyValue(keys, Schema.AVRO(MutationValue.class), KeyValueEncodingType.SEPARATED);
        MutationValue value = new MutationValue();
        value.md5Digest = "0123456789abcdef0123456789abcdef";
        value.nodeId = UUID.fromString("00000000-0000-0000-0000-000000000001");
        try (Producer<KeyValue<byte[], MutationValue>> producer = client.newProducer(schema).topic(topic).create()) {
            producer.newMessage().value(new KeyValue<>(Base64.getDecoder().decode(key), value)).send();
        }
        System.out.println("{\"value\":"
                + json(KeyValueSchemaInfo.decodeKeyValueSchemaInfo(schema.getSchemaInfo()).getValue().getSchemaDefinition())
                + "}");
    }

    static String properties(Message<?> message) {
        List<String> parts = new ArrayList<>();
        message.getProperties().forEach((name, value) -> parts.add(json(name) + ":" + json(value)));
        return "{" + String.join(",", parts) + "}";
    }

    static String json(Object value) {
        if (value == null) {
            return "null";
        }
        if (value instanceof GenericRecord record && record.getNativeObject() instanceof KeyValue) {
            return json(record.getNativeObject());
        }
        if (value instanceof GenericRecord record) {
            List<String> parts = new ArrayList<>();
            for (Field field : record.getFields()) {
                parts.add(json(field.getName()) + ":" + json(record.getField(field)));
            }
            return "{" + String.join(",", parts) + "}";
        }
        if (value instanceof GenericObject object) {
            return json(object.getNativeObject());
        }
        if (value instanceof KeyValue<?, ?> pair) {
            return "{\"key\":" + json(pair.getKey()) + ",\"value\":" + json(pair.getValue()) + "}";
        }
        if (value instanceof MutationValue mutation) {
            return "{\"md5Digest\":" + json(mutation.md5Digest) + ",\"nodeId\":" + json(mutation.nodeId) + ",\"columns\":"
                    + json(mutation.columns) + "}";
        }
        if (value instanceof Typed.t row) {
            return "{\"a\":" + json(row.a) + ",\"c\":" + json(row.c) + "}";
        }
        if (value instanceof Number || value instanceof Boolean) {
            return value.toString();
        }
        if (value instanceof byte[] bytes) {
            return "\"bytes:" + Base64.getEncoder().encodeToString(bytes) + "\"";
        }
        return "\"" + value.toString().replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
