import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Follows a data topic and prints each record's key and row, in JSON with a tab between them; null for a row that is
 * gone. A delete marker has its scope after another tab, and the bounds of a range:
 * java Follow.java BROKERS REGISTRY TOPIC [--once] [--config FILE]
 *
 * FILE has properties of the Kafka client, and schema.registry.basic.auth.user.info and
 * schema.registry.ssl.ca.location, a PEM file; ${env:NAME} in a value is of the environment. Needs kafka-clients and
 * avro, with what they need, on the class path.
 */
public class Follow {
    private static final Duration PATIENCE = Duration.ofSeconds(30);
    private static final Pattern VARIABLE = Pattern.compile("\\$\\{env:([^}]+)}");
    private final HttpClient http;
    private final String login;
    private final ObjectMapper json = new ObjectMapper();
    private final Map<Integer, GenericDatumReader<GenericRecord>> readers = new HashMap<>();
    private final String registry;

    Follow(String registry, Properties settings) throws Exception {
        this.registry = registry;
        String user = settings.getProperty("schema.registry.basic.auth.user.info");
        login = user == null ? null : "Basic " + Base64.getEncoder().encodeToString(user.getBytes(StandardCharsets.UTF_8));
        String authority = settings.getProperty("schema.registry.ssl.ca.location");
        http = authority == null ? HttpClient.newHttpClient() : HttpClient.newBuilder().sslContext(trust(authority)).build();
    }

    public static void main(String[] arguments) throws Exception {
        List<String> words = List.of(arguments);
        int config = words.indexOf("--config");
        if (arguments.length < 3 || config == arguments.length - 1) {
            System.err.println("java Follow.java BROKERS REGISTRY TOPIC [--once] [--config FILE]");
            System.exit(2);
        }
        try {
            Properties settings = config < 0 ? new Properties() : settings(Path.of(arguments[config + 1]));
            settings.put("bootstrap.servers", arguments[0]);
            settings.putIfAbsent("group.id", "follow-" + arguments[2]);
            settings.put("enable.auto.commit", false);
            settings.put("allow.auto.create.topics", false);
            settings.put("auto.offset.reset", "earliest");
            settings.put("isolation.level", "read_committed");
            settings.put("default.api.timeout.ms", (int) PATIENCE.toMillis());
            new Follow(arguments[1], settings).follow(arguments[2], settings, words.contains("--once"));
        } catch (KafkaException | IOException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            System.err.println("Follow.java: " + arguments[2] + " at " + arguments[0] + ": " + error.getMessage()
                    + (cause == error ? "" : ": " + cause.getMessage()) + ". TLS and logins go into --config");
            System.exit(1);
        }
    }

    private void follow(String topic, Properties settings, boolean ends) throws IOException, InterruptedException {
        // The default charset of a terminal may have no more than ASCII.
        var out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        var bytes = new ByteArrayDeserializer();
        Map<String, Object> consumed = new HashMap<>();
        settings.forEach((name, value) -> consumed.put((String) name, value));
        consumed.keySet().removeIf(name -> name.startsWith("schema.registry."));
        try (var consumer = new KafkaConsumer<byte[], byte[]>(consumed, bytes, bytes)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(5));
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    GenericRecord key = read(record.key());
                    GenericRecord row = record.value() == null ? null : read(record.value());
                    out.println(key + "\t" + row + marker(record.headers())); // here your own code
                }
                try {
                    consumer.commitSync();
                    if (records.isEmpty() && isAtEnd(consumer, topic, ends)) {
                        return;
                    }
                } catch (RetriableException error) {
                    if (ends) {
                        throw error;
                    }
                    System.err.println("Follow.java: " + topic + ": " + error.getMessage() + "; trying again");
                }
            }
        }
    }

    /** Whether all is read; says, or throws, that the brokers do not answer. */
    private static boolean isAtEnd(KafkaConsumer<byte[], byte[]> consumer, String topic, boolean ends) {
        if (consumer.partitionsFor(topic).isEmpty()) {
            throw new UnknownTopicOrPartitionException("there is no topic " + topic);
        }
        if (!ends || consumer.assignment().isEmpty()) {
            return false;
        }
        return consumer.endOffsets(consumer.assignment()).entrySet().stream()
                .allMatch(end -> consumer.position(end.getKey()) >= end.getValue());
    }

    /** The scope of a delete marker: its rows are gone, and those that live follow. Nothing for a row's record. */
    private static String marker(Headers headers) {
        StringBuilder text = new StringBuilder();
        for (String name : List.of("scope", "start", "end")) {
            Header header = headers.lastHeader(name);
            if (header != null) {
                text.append('\t').append(name).append('=').append(new String(header.value(), StandardCharsets.UTF_8));
            }
        }
        return text.toString();
    }

    private static Properties settings(Path file) throws IOException {
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(file)) {
            settings.load(reader);
        }
        for (String name : settings.stringPropertyNames()) {
            Matcher variable = VARIABLE.matcher(settings.getProperty(name));
            settings.setProperty(name, variable.replaceAll(found -> {
                String value = System.getenv(found.group(1));
                if (value == null) {
                    throw new KafkaException("the environment variable " + found.group(1) + " is not set");
                }
                return Matcher.quoteReplacement(value);
            }));
        }
        return settings;
    }

    private static SSLContext trust(String file) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (var certificates = Files.newInputStream(Path.of(file))) {
            for (Certificate certificate : CertificateFactory.getInstance("X.509").generateCertificates(certificates)) {
                trusted.setCertificateEntry("ca" + trusted.size(), certificate);
            }
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
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
        return parse(ask("/schemas/ids/" + id), new Schema.Parser());
    }

    /** A schema, after those that it refers to: the parser keeps their types. The connector's own refer to none. */
    private Schema parse(JsonNode schema, Schema.Parser parser) throws IOException, InterruptedException {
        for (JsonNode reference : schema.path("references")) {
            if (!parser.getTypes().containsKey(reference.get("name").asText())) {
                String subject = URLEncoder.encode(reference.get("subject").asText(), StandardCharsets.UTF_8);
                String version = reference.get("version").asText();
                parse(ask("/subjects/" + subject.replace("+", "%20") + "/versions/" + version + "?deleted=true"), parser);
            }
        }
        return parser.parse(schema.get("schema").asText());
    }

    private JsonNode ask(String path) throws IOException, InterruptedException {
        var request = HttpRequest.newBuilder(URI.create(registry + path));
        if (login != null) {
            request.header("Authorization", login);
        }
        var answer = http.send(request.build(), BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IOException(registry + " answered " + answer.statusCode() + ": is that the registry's address?");
        }
        return json.readTree(answer.body());
    }
}
