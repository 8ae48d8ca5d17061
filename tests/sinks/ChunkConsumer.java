import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordDeserializationException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.storage.Converter;

/**
 * Prints of each record of a topic's partition 0: key, SHA-256 of the value, and headers, with tabs between them; first
 * through helenus.ChunkDeserializer, then, after a line "converter", the text of its values through
 * helenus.ChunkConverter. In place of a value that is refused: the class of the error, and what it says.
 */
public class ChunkConsumer {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("group.id", "chunks-" + System.nanoTime());
        settings.put("client.id", "outer");
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        settings.put("helenus.chunks.missing", arguments[2]);
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        settings.put("value.deserializer", "helenus.ChunkDeserializer");
        settings.put("helenus.value.deserializer", "org.apache.kafka.common.serialization.StringDeserializer");
        for (ConsumerRecord<String, String> record : ChunkConsumer.<String>read(settings, arguments[1])) {
            System.out.println(record.key() + "\t" + digest(record.value()) + "\t" + names(record));
        }
        System.out.println("converter");
        Converter converter = Utils.newInstance("helenus.ChunkConverter", Converter.class);
        Map<String, Object> own = new HashMap<>();
        own.put("bootstrap.servers", arguments[0]);
        own.put("helenus.converter", "org.apache.kafka.connect.json.JsonConverter");
        own.put("schemas.enable", "false");
        converter.configure(own, false);
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        for (ConsumerRecord<String, byte[]> record : ChunkConsumer.<byte[]>read(settings, arguments[1])) {
            String text;
            try {
                SchemaAndValue value = converter.toConnectData(record.topic(), record.headers(), record.value());
                text = value.value() == null ? "null" : digest(texts((Map<?, ?>) value.value()));
            } catch (Exception error) {
                text = error.getClass().getSimpleName() + ": " + error.getMessage();
            }
            System.out.println(record.key() + "\t" + text + "\t" + names(record));
        }
        ((AutoCloseable) converter).close();
    }

    private static <V> List<ConsumerRecord<String, V>> read(Map<String, Object> settings, String topic) {
        List<ConsumerRecord<String, V>> read = new ArrayList<>();
        try (var consumer = new KafkaConsumer<String, V>(settings)) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                try {
                    consumer.poll(Duration.ofSeconds(1)).records(partition).forEach(read::add);
                } catch (RecordDeserializationException error) {
                    System.out.println("offset " + error.offset() + "\t" + error.getCause().getClass().getSimpleName()
                            + "\t" + error.getCause().getMessage());
                    consumer.seek(partition, error.offset() + 1);
                }
            }
        }
        return read;
    }

    private static String texts(Map<?, ?> row) {
        var text = new StringBuilder();
        for (String column : List.of("v", "w", "x")) {
            text.append(row.get(column) == null ? "" : row.get(column));
        }
        return text.toString();
    }

    private static String names(ConsumerRecord<?, ?> record) {
        var names = new TreeSet<String>();
        for (Header header : record.headers()) {
            names.add(header.key());
        }
        return String.join(",", names);
    }

    private static String digest(String text) throws Exception {
        if (text == null) {
            return "null";
        }
        byte[] digest = MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
        return String.format("%064x", new BigInteger(1, digest));
    }
}
