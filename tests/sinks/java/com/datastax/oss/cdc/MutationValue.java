package com.datastax.oss.cdc;

import java.util.UUID;

/** The value of an event as DataStax's agents and connectors have it: its name and its fields make its schema. */
public class MutationValue {
    public String md5Digest;
    public UUID nodeId;
    public String[] columns;
}
