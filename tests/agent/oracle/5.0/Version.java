import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
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

    /** The version in which a mutation's digest is taken: that of its segment. */
    static int ofDigest(CommitLogDescriptor segment)
    {
        return segment.getMessagingVersion();
    }
}
