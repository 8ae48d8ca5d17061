"""What is known of the rows of a place between batches, on Spark's state store.

calendar, index   what a data topic says of its keys          spark_store   where Spark keeps it
"""
