import java.io.IOException;
import java.util.Arrays;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaTransformation;

/** What Oracle.java asks of Cassandra 5.0 in its own way. */
class Version
{
    static void initialize()
    {
        DatabaseDescriptor.toolInitialization();
    }

    static void define(SchemaTransformation transformation)
    {
        Schema.instance.transform(transformation);
    }

    /** The bytes that the digest is of: those of the log. */
    static byte[] content(Mutation mutation, byte[] logged, int size) throws IOException
    {
        return Arrays.copyOf(logged, size);
    }
}
