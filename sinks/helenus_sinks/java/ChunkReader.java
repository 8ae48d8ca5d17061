package helenus;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.SerializationException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads values that are in chunks (errors.large.record=chunk): the form is described in helenus_sinks/chunks.py. A
 * record whose header "chunks" names some is read whole by a consumer of its own, from the topic "chunks-TOPIC". For
 * one thread at a time.
 *
 * Settings, beside those of a consumer: helenus.chunks.max.bytes (64 MiB), the largest value that is read; and
 * helenus.chunks.missing: "leave" (default) gives the smaller record where chunks are gone, as compaction and retention
 * take them; "fail" throws SerializationException.
 */
final class ChunkReader implements AutoCloseable {
    private static final String HEADER = "chunks";
    private static final String CHUNK_HEADER = "chunk";
    private static final String LEFT_OUT = "left_out";
    private static final Duration POLL = Duration.ofMillis(500);
    private static final Duration TIMEOUT = Duration.ofSeconds(30);
    private static final long MAX_BYTES = 64 << 20;
    private static final int MAX_HEADER_BYTES = 1000;
    private static final long MAX_OTHERS = 1000;
    private static final Pattern REFERENCE = Pattern.compile("\\{\"id\":\"([0-9a-f]{32})\",\"count\":(\\d{1,18}),"
            + "\"size\":(\\d{1,18}),\"sha256\":\"([0-9a-f]{64})\",\"partition\":(\\d{1,9}),\"offset\":(\\d{1,18}),"
            + "\"last\":(\\d{1,18})\\}");
    /** Of a consumer around it: they are not for the one that reads chunks. */
    private static final List<String> OTHERS = List.of("group.id", "group.instance.id", "group.protocol", "client.id",
            "interceptor.classes", "metric.reporters", "key.deserializer", "value.deserializer",
            "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.records");

    private final Map<String, Object> settings = new HashMap<>();
    private final long maxBytes;
    private final boolean failsForMissing;
    private KafkaConsumer<byte[], byte[]> consumer;

    ChunkReader(Map<String, ?> configs) {
        Object limit = configs.get("helenus.chunks.max.bytes");
        maxBytes = limit == null ? MAX_BYTES : Long.parseLong(limit.toString().trim());
        Object missing = configs.get("helenus.chunks.missing");
        failsForMissing = missing != null && missing.toString().trim().equals("fail");
        if (missing != null && !failsForMissing && !missing.toString().trim().equals("leave")) {
            throw new org.apache.kafka.common.config.ConfigException("helenus.chunks.missing", missing, "leave or fail");
        }
        configs.forEach((name, value) -> {
            if (value != null && !OTHERS.contains(name) && !name.startsWith("helenus.")) {
                settings.put(name, value);
            }
        });
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "none");
        settings.put("allow.auto.create.topics", false);
        // A chunk of a transaction that was aborted has another id: so nothing waits for transactions that are open.
        settings.put("isolation.level", "read_uncommitted");
    }

    /**
     * The whole value of a record; `value` if it has no chunks, or they are gone. Removes the headers that only the
     * smaller record has. Throws SerializationException for chunks that no connector wrote, TimeoutException if the
     * brokers do not answer.
     */
    byte[] whole(String topic, Headers headers, byte[] value) {
        Header header = headers == null ? null : headers.lastHeader(HEADER);
        if (header == null) {
            return value;
        }
        Reference reference = new Reference(header.value(), maxBytes);
        byte[] whole;
        try {
            whole = read(new TopicPartition("chunks-" + topic, reference.partition), reference);
        } catch (OffsetOutOfRangeException gone) {
            whole = null;
        }
        if (whole == null) {
            if (failsForMissing) {
                throw new SerializationException(topic + ": the chunks of a record are gone: " + reference);
            }
            return value;
        }
        headers.remove(HEADER);
        List<Header> leftOut = new ArrayList<>();
        headers.headers(LEFT_OUT).forEach(leftOut::add);
        headers.remove(LEFT_OUT);
        leftOut.stream().limit(Math.max(0, leftOut.size() - 1)).forEach(headers::add);
        return whole;
    }

    private byte[] read(TopicPartition partition, Reference reference) {
        if (consumer == null) {
            var bytes = new ByteArrayDeserializer();
            consumer = new KafkaConsumer<>(settings, bytes, bytes);
        }
        if (partition.partition() >= consumer.partitionsFor(partition.topic()).size()) {
            throw new SerializationException("there is no partition " + partition);
        }
        consumer.assign(List.of(partition));
        try {
            consumer.seek(partition, reference.offset);
            byte[] whole = new byte[(int) reference.size];
            long length = 0;
            int number = 0;
            long deadline = System.nanoTime() + TIMEOUT.toNanos();
            while (true) {
                var records = consumer.poll(POLL).records(partition);
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    if (record.offset() > reference.last) {
                        return null;
                    }
                    Header chunk = record.headers().lastHeader(CHUNK_HEADER);
                    String expected = reference.id + ":" + number;
                    if (record.value() == null || chunk == null || !expected.equals(text(chunk.value()))) {
                        continue;
                    }
                    if (length + record.value().length > reference.size) {
                        throw new SerializationException("chunks of more than " + reference.size + " bytes");
                    }
                    System.arraycopy(record.value(), 0, whole, (int) length, record.value().length);
                    length += record.value().length;
                    number++;
                    if (number == reference.count) {
                        return check(whole, length, reference);
                    }
                }
                if (!records.isEmpty()) {
                    deadline = System.nanoTime() + TIMEOUT.toNanos();
                } else if (consumer.position(partition) > reference.last) {
                    return null;
                } else if (System.nanoTime() > deadline) {
                    // An end before the last chunk may be that of a broker that has just become the leader: it learns
                    // later what is acknowledged. After the timeout it is another topic's.
                    if (consumer.endOffsets(List.of(partition)).get(partition) <= reference.last) {
                        return null;
                    }
                    throw new TimeoutException("no chunks came from " + partition);
                }
            }
        } finally {
            consumer.unsubscribe();
        }
    }

    private static byte[] check(byte[] whole, long length, Reference reference) {
        try {
            var hex = new StringBuilder();
            for (byte part : MessageDigest.getInstance("SHA-256").digest(whole)) {
                hex.append(String.format("%02x", part));
            }
            if (length != reference.size || !hex.toString().equals(reference.sha256)) {
                throw new SerializationException("the chunks are not those of the value that was written");
            }
            return whole;
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "" : new String(bytes, java.nio.charset.StandardCharsets.US_ASCII);
    }

    @Override
    public void close() {
        if (consumer != null) {
            consumer.close();
            consumer = null;
        }
    }

    /** What the header says, if it can be. */
    private static final class Reference {
        final String id;
        final String sha256;
        final long count;
        final long size;
        final long offset;
        final long last;
        final int partition;
        private final String text;

        Reference(byte[] header, long maxBytes) {
            text = header == null || header.length > MAX_HEADER_BYTES ? "" : ChunkReader.text(header);
            Matcher fields = REFERENCE.matcher(text);
            if (!fields.matches()) {
                throw new SerializationException("the header chunks is none that a connector wrote");
            }
            id = fields.group(1);
            count = Long.parseLong(fields.group(2));
            size = Long.parseLong(fields.group(3));
            sha256 = fields.group(4);
            partition = Integer.parseInt(fields.group(5));
            offset = Long.parseLong(fields.group(6));
            last = Long.parseLong(fields.group(7));
            if (count < 1 || count > size || last - offset < count - 1 || last - offset >= 2 * count + MAX_OTHERS) {
                throw new SerializationException("the header chunks can't be: " + text);
            }
            if (size > Math.min(maxBytes, Integer.MAX_VALUE - 8)) {
                throw new SerializationException("a value of " + size + " bytes, where " + maxBytes + " are allowed");
            }
        }

        @Override
        public String toString() {
            return text;
        }
    }
}
