import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Follows a data topic and prints each record's key and row, in JSON with a tab between them; null for a row that is
 * gone: java Follow.java BROKERS REGISTRY TOPIC [--once]
 *
 * Needs kafka-clients and avro, with what they need, on the class path.
 */
public class Follow {
    private final HttpClient http = HttpClient.newHttpClient();
    private final ObjectMapper json = new ObjectMapper();
    private final Map<Integer, GenericDatumReader<GenericRecord>> readers = new HashMap<>();
    private final String registry;

    Follow(String registry) {
        this.registry = registry;
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 3) {
            System.err.println("java Follow.java BROKERS REGISTRY TOPIC [--once]");
            System.exit(2);
        }
        String topic = arguments[2];
        boolean ends = List.of(arguments).contains("--once");
        Follow schemas = new Follow(arguments[1]);
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0],
                "group.id", "follow-" + topic,
                "enable.auto.commit", false,
                "auto.offset.reset", "earliest",
                "isolation.level", "read_committed");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(5));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (record.headers().lastHeader("scope") != null) {
                        continue; // a delete marker: with state=keys or state=rows each row has its own null
                    }
                    GenericRecord key = schemas.read(record.key());
                    GenericRecord row = record.value() == null ? null : schemas.read(record.value());
                    System.out.println(key + "\t" + row); // here your own code
                }
                consumer.commitSync();
                if (ends && records.isEmpty() && !consumer.assignment().isEmpty()) {
                    return;
                }
            }
        }
    }

    /** The Confluent wire format: a zero byte, the schema's id, Avro. */
    GenericRecord read(byte[] data) throws IOException, InterruptedException {
        ByteBuffer head = ByteBuffer.wrap(data);
        if (head.get() != 0) {
            throw new IOException("not in the Confluent wire format");
        }
        int id = head.getInt();
        if (!readers.containsKey(id)) {
            readers.put(id, new GenericDatumReader<>(schema(id)));
        }
        int start = head.position();
        return readers.get(id).read(null, DecoderFactory.get().binaryDecoder(data, start, data.length - start, null));
    }

    private Schema schema(int id) throws IOException, InterruptedException {
        var asked = HttpRequest.newBuilder(URI.create(registry + "/schemas/ids/" + id)).build();
        var answer = http.send(asked, BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(asked.uri() + " answered " + answer.statusCode() + ": is that the registry's address?");
        }
        return new Schema.Parser().parse(json.readTree(answer.body()).get("schema").asText());
    }
}
