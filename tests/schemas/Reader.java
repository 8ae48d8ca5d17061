import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/**
 * Decodes Avro records as any Java consumer does. A line in is `{"schema": text, "data": hex}`, and there is one out for
 * each: `{"schema": the schema as Avro prints it, "value": ...}` or `{"error": ...}`. In a value bytes are `0x` and hex,
 * floats the 16 hex digits of their double.
 */
public class Reader {
    public static void main(String[] arguments) throws IOException {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<?, ?> asked = mapper.readValue(line, Map.class);
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                Schema schema = new Schema.Parser().parse((String) asked.get("schema"));
                answer.put("schema", schema.toString());
                answer.put("value", decode(schema, HexFormat.of().parseHex((String) asked.get("data"))));
            } catch (Exception error) {
                answer.put("error", error.toString());
            }
            out.println(mapper.writeValueAsString(answer));
        }
    }

    static Object decode(Schema schema, byte[] data) throws IOException {
        BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(data, null);
        GenericRecord record = new GenericDatumReader<GenericRecord>(schema).read(null, decoder);
        if (!decoder.isEnd()) {
            throw new IOException("bytes are left after the record");
        }
        return plain(record);
    }

    static Object plain(Object value) {
        if (value instanceof GenericRecord record) {
            Map<String, Object> fields = new LinkedHashMap<>();
            for (Schema.Field field : record.getSchema().getFields()) {
                fields.put(field.name(), plain(record.get(field.pos())));
            }
            return fields;
        }
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> entries = new LinkedHashMap<>();
            map.forEach((key, item) -> entries.put(key.toString(), plain(item)));
            return entries;
        }
        if (value instanceof List<?> list) {
            List<Object> items = new ArrayList<>();
            list.forEach(item -> items.add(plain(item)));
            return items;
        }
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return "0x" + HexFormat.of().formatHex(bytes);
        }
        if (value instanceof GenericFixed fixed) {
            return "0x" + HexFormat.of().formatHex(fixed.bytes());
        }
        if (value instanceof Float || value instanceof Double) {
            return String.format("%016x", Double.doubleToLongBits(((Number) value).doubleValue()));
        }
        if (value instanceof GenericFixed fixed) {
            return "0x" + HexFormat.of().formatHex(fixed.bytes());
        }
        return value instanceof CharSequence || value instanceof GenericEnumSymbol<?> ? value.toString() : value;
    }
}
