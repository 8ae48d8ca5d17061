import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaDeserializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.generic.GenericRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Deserializer;

/**
 * Reads keys and values as consumers with Apicurio's deserializers do. The argument is the registry's address. A line
 * in is `{"format", "key": whether it is one, "topic", "message": a name, "data": hex or null}`, and there is one out
 * for each, behind a `=`: `{"value": ...}` or `{"error": ...}`. In a value bytes are `0x` and hex, floats the 16 hex
 * digits of their double, and a field of Protobuf that says whether it is set is null if it is not.
 *
 * A message of Protobuf is read without a generated class: its deserializer then takes the name of the message from a
 * header, which the producer would have set, and passes over the place of it in the record.
 */
public class RegistryReaders {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Map<String, Deserializer<?>> deserializers = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = mapper.readTree(line);
            String format = asked.get("format").asText();
            boolean isKey = asked.get("key").asBoolean();
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                Deserializer<?> deserializer = deserializers.computeIfAbsent(
                        format + isKey, name -> deserializer(format, isKey, arguments[0]));
                byte[] data = asked.get("data").isNull() ? null : HexFormat.of().parseHex(asked.get("data").asText());
                RecordHeaders headers = new RecordHeaders();
                if (asked.hasNonNull("message")) {
                    String header = "apicurio." + (isKey ? "key" : "value") + ".msgType";
                    headers.add(header, asked.get("message").asText().getBytes(StandardCharsets.UTF_8));
                }
                answer.put("value", plain(deserializer.deserialize(asked.get("topic").asText(), headers, data)));
            } catch (Exception error) {
                answer.put("error", error + " " + error.getCause());
            }
            out.println("=" + mapper.writeValueAsString(answer));
        }
        System.exit(0); // the client of the registry has threads
    }

    /** Ids are Confluent's by default: four bytes, of contents. */
    static Deserializer<?> deserializer(String format, boolean isKey, String registry) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("apicurio.registry.url", registry);
        Deserializer<?> deserializer = switch (format) {
            case "avro" -> new AvroKafkaDeserializer<Object>();
            case "json" -> new JsonSchemaKafkaDeserializer<JsonNode>();
            default -> new ProtobufKafkaDeserializer<Message>();
        };
        if (format.equals("protobuf")) {
            settings.put("apicurio.registry.serde.read-type-ref", "false");
            settings.put("apicurio.registry.serde.read-indexes", "true");
            settings.put("apicurio.registry.deserializer.%s.return-class".formatted(isKey ? "key" : "value"),
                    DynamicMessage.class.getName());
        } else if (format.equals("json")) {
            settings.put("apicurio.registry.serde.validation-enabled", "true");
        }
        deserializer.configure(settings, isKey);
        return deserializer;
    }

    static Object plain(Object value) {
        if (value instanceof GenericRecord record) {
            Map<String, Object> fields = new LinkedHashMap<>();
            record.getSchema().getFields().forEach(field -> fields.put(field.name(), plain(record.get(field.pos()))));
            return fields;
        }
        if (value instanceof Message message) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (FieldDescriptor field : message.getDescriptorForType().getFields()) {
                boolean isNull = field.hasPresence() && !message.hasField(field);
                fields.put(field.getName(), isNull ? null : plain(message.getField(field)));
            }
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> entries = new LinkedHashMap<>();
            map.forEach((key, item) -> entries.put(key.toString(), plain(item)));
            return entries;
        }
        if (value instanceof Iterable<?> list && !(value instanceof JsonNode) && !(value instanceof ByteString)) {
            List<Object> items = new ArrayList<>();
            list.forEach(item -> items.add(plain(item)));
            return items;
        }
        if (value instanceof ByteString bytes) {
            return "0x" + HexFormat.of().formatHex(bytes.toByteArray());
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return "0x" + HexFormat.of().formatHex(bytes);
        }
        if (value instanceof Float || value instanceof Double) {
            return String.format("%016x", Double.doubleToLongBits(((Number) value).doubleValue()));
        }
        return value instanceof CharSequence ? value.toString() : value;
    }
}
