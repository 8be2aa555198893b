BEGIN TRANSACTION;
CREATE TABLE "penstock_losses" ("topic" TEXT NOT NULL, "partition_id" BIGINT NOT NULL, "start_offset" BIGINT NOT NULL, "until_offset" BIGINT NOT NULL, "condition_name" TEXT NOT NULL, "detail" TEXT NOT NULL, "topic_id" TEXT NOT NULL, "stream" TEXT NOT NULL, "first_seen_ms" BIGINT NOT NULL, "last_seen_ms" BIGINT NOT NULL, "times_seen" BIGINT NOT NULL, PRIMARY KEY ("topic", "partition_id", "start_offset", "until_offset"));
INSERT INTO "penstock_losses" VALUES('visits',0,5,800,'START_OFFSET_RESET','Offsets [5, 800) were deleted before they were read.','000102030405060708090a0b0c0d0e0f','counting visits',1700000000000,1700000000000,1);
INSERT INTO "penstock_losses" VALUES('visits',1,7,7,'PARTITIONS_DELETED','','','',1700000001000,1700000002000,2);
CREATE TABLE "penstock_meta" ("component" TEXT NOT NULL PRIMARY KEY, "version" BIGINT NOT NULL);
INSERT INTO "penstock_meta" VALUES('losses',1);
COMMIT;
