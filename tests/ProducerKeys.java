import org.apache.kafka.clients.producer.ProducerConfig;

/** Prints the name of every setting of Kafka's own producer, one a line. */
public class ProducerKeys {
    public static void main(String[] arguments) {
        ProducerConfig.configNames().stream().sorted().forEach(System.out::println);
    }
}
