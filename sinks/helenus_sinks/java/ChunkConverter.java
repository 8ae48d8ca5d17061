package helenus;

import java.io.Closeable;
import java.io.IOException;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.storage.Converter;

/**
 * Converts values of which some are in chunks, for sinks of Kafka Connect. Another converter gets the whole value:
 *
 * <pre>
 * value.converter=helenus.ChunkConverter
 * value.converter.helenus.converter=io.confluent.connect.avro.AvroConverter
 * value.converter.bootstrap.servers=broker:9092
 * value.converter.schema.registry.url=http://registry:8081
 * </pre>
 */
public final class ChunkConverter implements Converter, Closeable {
    static final String INNER = "helenus.converter";
    private Converter inner;
    private ChunkReader reader;

    @Override
    public ConfigDef config() {
        return new ConfigDef();
    }

    @Override
    public void configure(Map<String, ?> configs, boolean isKey) {
        if (isKey) {
            throw new ConfigException("key.converter", getClass().getName(), "keys are never in chunks");
        }
        Object name = configs.get(INNER);
        if (name == null || configs.get("bootstrap.servers") == null) {
            String key = name == null ? INNER : "bootstrap.servers";
            throw new ConfigException("value.converter." + key, null, "set it");
        }
        try {
            inner = Utils.newInstance(name.toString().trim(), Converter.class);
        } catch (ClassNotFoundException error) {
            throw new ConfigException("value.converter." + INNER, name, "there is no such class");
        }
        inner.configure(configs, false);
        reader = new ChunkReader(configs);
    }

    @Override
    public byte[] fromConnectData(String topic, Schema schema, Object value) {
        return inner.fromConnectData(topic, schema, value);
    }

    @Override
    public SchemaAndValue toConnectData(String topic, byte[] value) {
        return inner.toConnectData(topic, value);
    }

    @Override
    public SchemaAndValue toConnectData(String topic, Headers headers, byte[] value) {
        return inner.toConnectData(topic, headers, reader.whole(topic, headers, value));
    }

    @Override
    public void close() throws IOException {
        if (reader != null) {
            reader.close();
        }
        if (inner instanceof Closeable) {
            ((Closeable) inner).close();
        }
    }
}
