ALTER TABLE batches ADD COLUMN notify_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE batches ADD COLUMN notify_tries BIGINT NOT NULL DEFAULT 0;
CREATE INDEX batches_to_notify ON batches (notify_at) WHERE notify_at >= 0;
