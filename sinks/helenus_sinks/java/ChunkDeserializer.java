package helenus;

import java.util.Map;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Deserializes values of which some are in chunks, for consumers and Kafka Streams. Another deserializer gets the whole
 * value, with all settings of the consumer:
 *
 * <pre>
 * value.deserializer=helenus.ChunkDeserializer
 * helenus.value.deserializer=io.confluent.kafka.serializers.KafkaAvroDeserializer
 * </pre>
 */
public final class ChunkDeserializer<T> implements Deserializer<T> {
    static final String INNER = "helenus.value.deserializer";
    private Deserializer<T> inner;
    private ChunkReader reader;

    public ChunkDeserializer() {}

    /** As by its settings, around this deserializer. */
    public ChunkDeserializer(Deserializer<T> inner) {
        this.inner = inner;
    }

    @Override
    @SuppressWarnings("unchecked")
    public void configure(Map<String, ?> configs, boolean isKey) {
        if (isKey) {
            throw new ConfigException("key.deserializer", getClass().getName(), "keys are never in chunks");
        }
        if (inner == null) {
            Object name = configs.get(INNER);
            if (name == null) {
                throw new ConfigException(INNER, null, "set it: the class that deserializes whole values");
            }
            try {
                inner = name instanceof Class
                        ? (Deserializer<T>) Utils.newInstance((Class<?>) name)
                        : (Deserializer<T>) Utils.newInstance(name.toString().trim(), Deserializer.class);
            } catch (ClassNotFoundException error) {
                throw new ConfigException(INNER, name, "there is no such class");
            }
        }
        inner.configure(configs, false);
        reader = new ChunkReader(configs);
    }

    @Override
    public T deserialize(String topic, byte[] data) {
        return inner.deserialize(topic, data);
    }

    @Override
    public T deserialize(String topic, Headers headers, byte[] data) {
        return inner.deserialize(topic, headers, reader.whole(topic, headers, data));
    }

    @Override
    public void close() {
        try {
            if (reader != null) {
                reader.close();
            }
        } finally {
            if (inner != null) {
                inner.close();
            }
        }
    }
}
