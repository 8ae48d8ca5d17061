import java.io.IOException;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.apache.cassandra.net.MessagingService;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaTransformation;
import org.apache.cassandra.tcm.ClusterMetadataService;

/** What Oracle.java asks of Cassandra 6.0 in its own way. */
class Version
{
    static void initialize()
    {
        DatabaseDescriptor.toolInitialization();
        ClusterMetadataService.initializeForTools(false);
    }

    static void define(SchemaTransformation transformation)
    {
        Schema.instance.submit(transformation);
    }

    /** The bytes that the digest is of: those that a node of 5.0 would have logged. */
    static byte[] content(Mutation mutation, byte[] logged, int size) throws IOException
    {
        try (DataOutputBuffer out = new DataOutputBuffer())
        {
            Mutation.serializer.serialize(mutation, out, MessagingService.VERSION_50);
            return out.toByteArray();
        }
    }
}
