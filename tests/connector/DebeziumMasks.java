import io.debezium.relational.Column;
import io.debezium.relational.ValueConverter;
import io.debezium.relational.mapping.MaskStrings;
import io.debezium.relational.mapping.TruncateColumn;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Types;
import java.util.Base64;

/** Debezium's own masks. A line of kind, argument, salt and text, the last two as base64, becomes the masked text's. */
public class DebeziumMasks {
    public static void main(String[] arguments) throws Exception {
        Column column = Column.editor().name("c").type("text").jdbcType(Types.VARCHAR).position(1).create();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split(" ", -1);
            byte[] salt = Base64.getDecoder().decode(parts[2]);
            String text = new String(Base64.getDecoder().decode(parts[3]), StandardCharsets.UTF_8);
            ValueConverter converter = switch (parts[0]) {
                case "v1" -> new MaskStrings(salt, parts[1], MaskStrings.HashingByteArrayStrategy.V1).create(column);
                case "v2" -> new MaskStrings(salt, parts[1], MaskStrings.HashingByteArrayStrategy.V2).create(column);
                case "chars" -> new MaskStrings("*".repeat(Integer.parseInt(parts[1]))).create(column);
                default -> new TruncateColumn(Integer.parseInt(parts[1])).create(column);
            };
            String masked = (String) converter.convert(text);
            System.out.println(Base64.getEncoder().encodeToString(masked.getBytes(StandardCharsets.UTF_8)));
        }
    }
}
