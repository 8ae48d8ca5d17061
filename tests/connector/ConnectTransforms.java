import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.apicurio.registry.utils.converter.avro.AvroData;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HashMap;
import java.util.Map;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.storage.SimpleHeaderConverter;
import org.apache.kafka.connect.transforms.Transformation;
import org.apache.kafka.connect.transforms.predicates.Predicate;

/**
 * Kafka Connect's own transforms. Each line of JSON names a `plugin` and has its `config` and some `records`; for each of
 * these a line says what comes out. Without records a line says which keys the plugin has. Of `avro`, a value with its
 * schema, a line has the schema and the bytes in Avro.
 */
public class ConnectTransforms {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final JsonConverter JSON = new JsonConverter();
    private static final AvroData AVRO = new AvroData(1000);
    private static final SimpleHeaderConverter HEADERS = new SimpleHeaderConverter();

    public static void main(String[] arguments) throws Exception {
        JSON.configure(Map.of("converter.type", "value", "replace.null.with.default", "false"), false);
        PrintStream out = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = MAPPER.readTree(line);
            if (request.get("avro") != null) {
                out.println(MAPPER.writeValueAsString(avro(part(request.get("avro")))));
                continue;
            }
            Object plugin = Class.forName(request.get("plugin").asText()).getDeclaredConstructor().newInstance();
            if (request.get("records") == null) {
                out.println(MAPPER.writeValueAsString(keys(plugin)));
                continue;
            }
            Map<String, String> config = new HashMap<>();
            request.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
            for (JsonNode record : request.get("records")) {
                out.println(MAPPER.writeValueAsString(result(plugin, config, record)));
            }
        }
        out.flush();
    }

    @SuppressWarnings("unchecked")
    private static ObjectNode result(Object plugin, Map<String, String> config, JsonNode given) {
        ObjectNode node = MAPPER.createObjectNode();
        try {
            SourceRecord record = read(given);
            if (plugin instanceof Predicate) {
                ((Predicate<SourceRecord>) plugin).configure(config);
                return node.put("test", ((Predicate<SourceRecord>) plugin).test(record));
            }
            Transformation<SourceRecord> transform = (Transformation<SourceRecord>) plugin;
            transform.configure(config);
            SourceRecord changed = transform.apply(record);
            return changed == null ? node.put("dropped", true) : write(changed, node);
        } catch (Exception error) {
            return MAPPER.createObjectNode().put("error", error.toString());
        }
    }

    private static SourceRecord read(JsonNode given) throws Exception {
        SchemaAndValue key = part(given.get("key")), value = part(given.get("value"));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : given.get("headers")) {
            headers.add(header.get(0).asText(), part(header.get(1)));
        }
        Integer partition = given.get("partition").isNull() ? null : given.get("partition").asInt();
        Long timestamp = given.get("timestamp").isNull() ? null : given.get("timestamp").asLong();
        return new SourceRecord(Map.of(), Map.of(), given.get("topic").asText(), partition, key.schema(), key.value(),
                value.schema(), value.value(), timestamp, headers);
    }

    private static SchemaAndValue part(JsonNode node) throws Exception {
        return node.isNull() ? SchemaAndValue.NULL : JSON.toConnectData("t", MAPPER.writeValueAsBytes(node));
    }

    private static ObjectNode write(SourceRecord record, ObjectNode node) throws Exception {
        node.put("topic", record.topic()).put("partition", record.kafkaPartition()).put("timestamp", record.timestamp());
        node.set("key", json(record.keySchema(), record.key()));
        node.set("value", json(record.valueSchema(), record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            byte[] data = HEADERS.fromConnectHeader("t", header.key(), header.schema(), header.value());
            headers.addArray().add(header.key())
                    .add(json(header.schema(), header.value()))
                    .add(data == null ? "" : new String(data, "UTF-8"));
        }
        return node;
    }

    private static JsonNode json(Schema schema, Object value) throws Exception {
        byte[] data = JSON.fromConnectData("t", schema, value);
        return data == null ? MAPPER.nullNode() : MAPPER.readTree(data);
    }

    private static ObjectNode avro(SchemaAndValue given) throws Exception {
        try {
            org.apache.avro.Schema schema = AVRO.fromConnectSchema(given.schema());
            ByteArrayOutputStream data = new ByteArrayOutputStream();
            BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(data, null);
            new GenericDatumWriter<Object>(schema).write(AVRO.fromConnectData(given.schema(), given.value()), encoder);
            encoder.flush();
            ObjectNode node = MAPPER.createObjectNode().put("data", data.toByteArray());
            return node.set("schema", MAPPER.readTree(schema.toString()));
        } catch (Exception error) {
            return MAPPER.createObjectNode().put("error", error.toString());
        }
    }

    private static ArrayNode keys(Object plugin) {
        ArrayNode keys = MAPPER.createArrayNode();
        ConfigDef config = plugin instanceof Predicate
                ? ((Predicate<?>) plugin).config() : ((Transformation<?>) plugin).config();
        for (ConfigDef.ConfigKey key : config.configKeys().values()) {
            ObjectNode node = keys.addObject().put("name", key.name).put("type", key.type.name());
            node.put("importance", key.importance.name()).put("required", !key.hasDefault());
            node.put("default", key.hasDefault() && key.defaultValue != null ? key.defaultValue.toString() : null);
        }
        return keys;
    }
}
