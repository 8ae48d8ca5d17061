import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
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

    /** The version in which a mutation's digest is taken: at most that of 5.0, which has no flags and no epochs. */
    static int ofDigest(CommitLogDescriptor segment)
    {
        return Math.min(segment.getMessagingVersion(), MessagingService.VERSION_50);
    }
}
