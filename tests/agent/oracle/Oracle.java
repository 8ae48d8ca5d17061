import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;

import org.apache.cassandra.cql3.CQLFragmentParser;
import org.apache.cassandra.cql3.CQLStatement;
import org.apache.cassandra.cql3.CqlParser;
import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.RangeTombstoneMarker;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.db.rows.Unfiltered;
import org.apache.cassandra.db.rows.UnfilteredRowIterator;
import org.apache.cassandra.io.util.DataOutputBuffer;
import org.apache.cassandra.io.util.File;
import org.apache.cassandra.schema.SchemaTransformation;
import org.apache.cassandra.service.ClientState;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * What Cassandra's own reader finds in commit log segments: `Oracle <schema> <segment>...`. It is compiled with the
 * Version.java of a Cassandra, and reads segments of that one and of older ones.
 *
 * The schema is a file of CQL statements, each ended by a zero byte. A line of JSON per effect: [segment, position, MD5 of
 * the mutation as a replica logs it that serialises it anew, table id, partition key, scope, clustering values, start, end,
 * write time, expiry, cells], bytes and names as hex, a bound as [inclusive, values], null for what is not there. Cells:
 * [liveness, deletion, deletions of columns, cells], of these a cell as [column, path, value, write time, TTL, local
 * deletion time]. Bytes outside the format end it with an error.
 */
public class Oracle extends CommitLogReader implements CommitLogReadHandler
{
    private final PrintStream out = new PrintStream(new BufferedOutputStream(System.out, 1 << 20), false);

    public static void main(String[] args) throws Exception
    {
        Version.initialize();
        for (String statement : Files.readString(Path.of(args[0])).split("\0"))
            define(statement);
        Oracle oracle = new Oracle();
        for (int i = 1; i < args.length; i++)
            oracle.readCommitLogSegment(oracle, new File(args[i]), true);
        oracle.out.flush();
        System.exit(0);
    }

    private static void define(String statement)
    {
        CQLStatement.Raw raw = CQLFragmentParser.parseAny(CqlParser::query, statement, "query");
        Version.define((SchemaTransformation) raw.prepare(ClientState.forInternalCalls()));
    }

    @Override
    public void handleMutation(Mutation mutation, int size, int position, CommitLogDescriptor descriptor)
    {
        String start = "[" + descriptor.id + ',' + position + ",\"" + digest(mutation, Version.ofDigest(descriptor)) + "\",\"";
        for (PartitionUpdate update : mutation.getPartitionUpdates())
            for (String effect : effects(update))
                out.println(start + update.metadata().id.asUUID() + "\"," + hex(update.partitionKey().getKey()) + ',' + effect + ']');
    }

    private static String digest(Mutation mutation, int version)
    {
        try (DataOutputBuffer out = new DataOutputBuffer())
        {
            // Not by the mutation's own serializer: it has kept the bytes that it was read from.
            out.writeUnsignedVInt32(mutation.getPartitionUpdates().size());
            for (PartitionUpdate update : mutation.getPartitionUpdates())
                PartitionUpdate.serializer.serialize(update, out, version);
            return HexFormat.of().formatHex(MessageDigest.getInstance("MD5").digest(out.toByteArray()));
        }
        catch (NoSuchAlgorithmException | IOException e)
        {
            throw new IllegalStateException(e);
        }
    }

    private static List<String> effects(PartitionUpdate update)
    {
        List<String> effects = new ArrayList<>();
        DeletionTime deletion = update.partitionLevelDeletion();
        if (!deletion.isLive())
            effects.add(effect("PARTITION", "null", "null", "null", deletion.markedForDeleteAt(), Long.MAX_VALUE, cells(deletion)));
        if (!update.staticRow().isEmpty())
            effects.add(effect("STATIC", "null", update.staticRow()));
        String start = null;
        try (UnfilteredRowIterator rows = update.unfilteredIterator())
        {
            while (rows.hasNext())
            {
                Unfiltered unfiltered = rows.next();
                if (unfiltered.isRow())
                {
                    effects.add(effect("ROW", values(unfiltered.clustering()), (Row) unfiltered));
                    continue;
                }
                RangeTombstoneMarker marker = (RangeTombstoneMarker) unfiltered;
                if (marker.isClose(false))
                {
                    String end = bound(marker.closeBound(false), marker.closeIsInclusive(false));
                    DeletionTime time = marker.closeDeletionTime(false);
                    effects.add(effect("RANGE", "null", start, end, time.markedForDeleteAt(), Long.MAX_VALUE, cells(time)));
                }
                if (marker.isOpen(false))
                    start = bound(marker.openBound(false), marker.openIsInclusive(false));
            }
        }
        return effects;
    }

    private static String effect(String scope, String clustering, Row row)
    {
        long newest = Long.MIN_VALUE;
        long expiry = Long.MAX_VALUE;
        LivenessInfo liveness = row.primaryKeyLivenessInfo();
        if (!liveness.isEmpty())
            newest = liveness.timestamp();
        if (liveness.isExpiring())
            expiry = liveness.localExpirationTime();
        if (!row.deletion().isLive())
            newest = Math.max(newest, row.deletion().time().markedForDeleteAt());
        for (ColumnData column : row)
            if (column instanceof ComplexColumnData)
                newest = Math.max(newest, ((ComplexColumnData) column).complexDeletion().markedForDeleteAt());
        for (Cell<?> cell : row.cells())
        {
            newest = Math.max(newest, cell.timestamp());
            if (cell.isExpiring())
                expiry = Math.min(expiry, cell.localDeletionTime());
        }
        return effect(scope, clustering, "null", "null", newest, expiry, cells(row));
    }

    private static String cells(DeletionTime deletion)
    {
        return "[null," + deletion(deletion) + ",[],[]]";
    }

    private static String cells(Row row)
    {
        LivenessInfo liveness = row.primaryKeyLivenessInfo();
        List<String> deletions = new ArrayList<>();
        List<String> cells = new ArrayList<>();
        for (ColumnData column : row)
            if (column instanceof ComplexColumnData && !((ComplexColumnData) column).complexDeletion().isLive())
                deletions.add("[" + hex(column.column().name.bytes) + ',' + deletion(((ComplexColumnData) column).complexDeletion()) + ']');
        for (Cell<?> cell : row.cells())
            cells.add("[" + hex(cell.column().name.bytes)
                      + ',' + (cell.path() == null ? "null" : hex(cell.path().get(0)))
                      + ',' + (cell.isTombstone() ? "null" : hex(cell.buffer()))
                      + ',' + cell.timestamp()
                      + ',' + (cell.isExpiring() ? cell.ttl() : "null")
                      + ',' + (cell.isExpiring() || cell.isTombstone() ? cell.localDeletionTime() : "null") + ']');
        return "[" + (liveness.isEmpty() ? "null" : "[" + liveness.timestamp()
                                                    + ',' + (liveness.isExpiring() ? liveness.ttl() : "null")
                                                    + ',' + (liveness.isExpiring() ? liveness.localExpirationTime() : "null") + ']')
               + ',' + (row.deletion().isLive() ? "null" : deletion(row.deletion().time()))
               + ",[" + String.join(",", deletions) + "],[" + String.join(",", cells) + "]]";
    }

    private static String deletion(DeletionTime deletion)
    {
        return "[" + deletion.markedForDeleteAt() + ',' + deletion.localDeletionTime() + ']';
    }

    private static String effect(String scope, String clustering, String start, String end, long newest, long expiry, String cells)
    {
        return '"' + scope + "\"," + clustering + ',' + start + ',' + end
               + ',' + (newest == Long.MIN_VALUE ? "null" : newest) + ',' + (expiry == Long.MAX_VALUE ? "null" : expiry) + ',' + cells;
    }

    private static String bound(ClusteringPrefix<?> bound, boolean inclusive)
    {
        return bound.size() == 0 ? "null" : "[" + inclusive + ',' + values(bound) + ']';
    }

    private static String values(ClusteringPrefix<?> prefix)
    {
        StringBuilder text = new StringBuilder("[");
        for (int i = 0; i < prefix.size(); i++)
            text.append(i == 0 ? "" : ",").append(hex(prefix.bufferAt(i)));
        return text.append(']').toString();
    }

    private static String hex(ByteBuffer value)
    {
        return value == null ? "null" : '"' + ByteBufferUtil.bytesToHex(value) + '"';
    }

    @Override
    public boolean shouldSkipSegmentOnError(CommitLogReadException error) throws IOException
    {
        throw error;
    }

    @Override
    public void handleUnrecoverableError(CommitLogReadException error) throws IOException
    {
        throw error;
    }
}
