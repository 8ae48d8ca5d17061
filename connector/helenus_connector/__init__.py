"""The Spark pipeline: events in, one clean record per changed row out."""
