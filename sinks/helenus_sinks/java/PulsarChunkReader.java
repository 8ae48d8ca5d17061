package helenus;

import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.impl.MessageIdImpl;

/**
 * Reads values of Pulsar's messages that are in chunks (errors.large.record=chunk): the form is described in
 * helenus_sinks/chunks.py. A message whose property "chunks" names some is read whole by a reader of its own, from the
 * topic "chunks-TOPIC". It reads values of a number of bytes at most, and holds one at a time.
 */
public final class PulsarChunkReader {
    private static final String PROPERTY = "chunks";
    private static final String CHUNK_PROPERTY = "chunk";
    private static final String PARTITION = "-partition-";
    private static final int TIMEOUT_S = 30;
    private static final long MAX_BYTES = 64 << 20;
    private static final int MAX_CHARACTERS = 1000;
    private static final long MAX_OTHERS = 1000;
    private static final int QUEUED = 2;
    private static final Pattern REFERENCE = Pattern.compile("\\{\"id\":\"([0-9a-f]{32})\",\"count\":(\\d{1,18}),"
            + "\"size\":(\\d{1,18}),\"sha256\":\"([0-9a-f]{64})\",\"partition\":(\\d{1,9}),"
            + "\"first\":\"(\\d{1,18}):(\\d{1,18})\",\"last\":\"(\\d{1,18}):(\\d{1,18})\"\\}");

    private final PulsarClient client;
    private final long maxBytes;

    public PulsarChunkReader(PulsarClient client) {
        this(client, MAX_BYTES);
    }

    public PulsarChunkReader(PulsarClient client, long maxBytes) {
        this.client = client;
        this.maxBytes = Math.min(maxBytes, Integer.MAX_VALUE - 8);
    }

    /**
     * The whole value of a message, with its schema version; `message.getData()` if it has no chunks, null if they are
     * gone: then that is a smaller one, without the columns that the property "left_out" names. Throws
     * IllegalArgumentException for chunks that no connector wrote, or a larger value than allowed.
     */
    public byte[] read(Message<?> message) throws PulsarClientException {
        String text = message.getProperty(PROPERTY);
        return text == null ? message.getData() : read(message.getTopicName(), text);
    }

    private byte[] read(String topic, String text) throws PulsarClientException {
        Matcher fields = REFERENCE.matcher(text.length() > MAX_CHARACTERS ? "" : text);
        if (!fields.matches()) {
            throw new IllegalArgumentException("the property chunks is none that a connector wrote");
        }
        long count = Long.parseLong(fields.group(2));
        long size = Long.parseLong(fields.group(3));
        if (count < 1 || count > size) {
            throw new IllegalArgumentException("the property chunks can't be: " + text);
        }
        if (size > maxBytes) {
            throw new IllegalArgumentException("a value of " + size + " bytes, where " + maxBytes + " are allowed");
        }
        int number = Integer.parseInt(fields.group(5));
        String partition = partition(topic, number);
        var first = new MessageIdImpl(Long.parseLong(fields.group(6)), Long.parseLong(fields.group(7)), number);
        var last = new MessageIdImpl(Long.parseLong(fields.group(8)), Long.parseLong(fields.group(9)), number);
        try (Reader<byte[]> reader = client.newReader().topic(partition).startMessageId(first)
                .startMessageIdInclusive().receiverQueueSize(QUEUED).create()) {
            return join(reader, last, fields.group(1), count, (int) size, fields.group(4));
        } catch (PulsarClientException error) {
            throw error;
        } catch (java.io.IOException error) {
            throw new PulsarClientException(error);
        }
    }

    /** The partition of the topic of chunks, which has to be there: a reader might make it. */
    private String partition(String topic, int number) throws PulsarClientException {
        int end = topic.lastIndexOf(PARTITION);
        String data = end < 0 ? topic : topic.substring(0, end);
        int name = data.lastIndexOf('/') + 1;
        String chunks = data.substring(0, name) + "chunks-" + data.substring(name);
        List<String> partitions;
        try {
            partitions = client.getPartitionsForTopic(chunks).get(TIMEOUT_S, TimeUnit.SECONDS);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new PulsarClientException(error);
        } catch (ExecutionException | java.util.concurrent.TimeoutException error) {
            throw new PulsarClientException(error);
        }
        String partition = chunks + PARTITION + number;
        if (!partitions.contains(partition)) {
            throw new IllegalArgumentException("there is no " + partition);
        }
        return partition;
    }

    private static byte[] join(Reader<byte[]> reader, MessageIdAdv last, String id, long count, int size, String sha256)
            throws PulsarClientException {
        byte[] whole = new byte[size];
        int length = 0;
        long number = 0;
        for (long seen = 0; seen < 2 * count + MAX_OTHERS && reader.hasMessageAvailable(); seen++) {
            Message<byte[]> message = reader.readNext(TIMEOUT_S, TimeUnit.SECONDS);
            if (message == null) {
                throw new PulsarClientException.TimeoutException("no chunks came from " + reader.getTopic());
            }
            var place = (MessageIdAdv) message.getMessageId();
            if (place.getLedgerId() > last.getLedgerId()
                    || place.getLedgerId() == last.getLedgerId() && place.getEntryId() > last.getEntryId()) {
                return null;
            }
            if (!(id + ":" + number).equals(message.getProperty(CHUNK_PROPERTY))) {
                continue;
            }
            byte[] chunk = message.getData();
            if (chunk.length > size - length) {
                throw new IllegalArgumentException("chunks of more than " + size + " bytes");
            }
            System.arraycopy(chunk, 0, whole, length, chunk.length);
            length += chunk.length;
            number++;
            if (number == count) {
                if (length != size || !sha256.equals(digest(whole))) {
                    throw new IllegalArgumentException("the chunks are not those of the value that was written");
                }
                return whole;
            }
        }
        return null;
    }

    private static String digest(byte[] whole) {
        try {
            var hex = new StringBuilder();
            for (byte part : MessageDigest.getInstance("SHA-256").digest(whole)) {
                hex.append(String.format("%02x", part));
            }
            return hex.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }
}
