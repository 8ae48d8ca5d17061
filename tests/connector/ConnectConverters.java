import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;

/**
 * Kafka Connect's own converters. A line of JSON, {"class", "header", "value": {"schema", "payload"}}, becomes a line of
 * the bytes as hexadecimal digits, `null` or `error`.
 */
public class ConnectConverters {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        JsonConverter json = new JsonConverter();
        json.configure(Map.of(), false);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = mapper.readTree(line);
            SchemaAndValue read = json.toConnectData("t", mapper.writeValueAsBytes(request.get("value")));
            Object converter = Class.forName(request.get("class").asText()).getDeclaredConstructor().newInstance();
            String answer;
            try {
                answer = hex(converted(converter, request.get("header").asBoolean(), read));
            } catch (RuntimeException error) {
                answer = "error";
            }
            System.out.println(answer);
        }
    }

    private static byte[] converted(Object converter, boolean isHeader, SchemaAndValue read) {
        if (isHeader) {
            HeaderConverter headers = (HeaderConverter) converter;
            headers.configure(Map.of("converter.type", "header"));
            return headers.fromConnectHeader("t", "h", read.schema(), read.value());
        }
        ((Converter) converter).configure(Map.of(), false);
        return ((Converter) converter).fromConnectData("t", read.schema(), read.value());
    }

    private static String hex(byte[] data) {
        return data == null ? "null" : HexFormat.of().formatHex(data);
    }
}
