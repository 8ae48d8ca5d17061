import io.apicurio.registry.utils.converter.avro.AvroData;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Base64;
import java.util.Map;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;

/**
 * What Kafka Connect sees. Lines of an Avro schema and a value, each as base64, become lines of JSON with schema; a line
 * of JSON with schema alone, as base64, is read and written again.
 */
public class ConnectJson {
    public static void main(String[] arguments) throws Exception {
        AvroData avro = new AvroData(1000);
        JsonConverter json = new JsonConverter();
        json.configure(Map.of(), false);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ");
            if (parts.length == 1) {
                SchemaAndValue read = json.toConnectData("t", Base64.getDecoder().decode(parts[0]));
                System.out.println(new String(json.fromConnectData("t", read.schema(), read.value()), "UTF-8"));
                continue;
            }
            Schema schema = new Schema.Parser().parse(new String(Base64.getDecoder().decode(parts[0]), "UTF-8"));
            byte[] data = Base64.getDecoder().decode(parts[1]);
            Object value = new GenericDatumReader<Object>(schema).read(null, DecoderFactory.get().binaryDecoder(data, null));
            SchemaAndValue found = avro.toConnectData(schema, value);
            System.out.println(new String(json.fromConnectData("t", found.schema(), found.value()), "UTF-8"));
        }
    }
}
