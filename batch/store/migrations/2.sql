ALTER TABLE files ADD COLUMN lines BIGINT NOT NULL DEFAULT 0;
CREATE INDEX files_by_expiry ON files (expires, id);
CREATE TABLE tenants (id TEXT PRIMARY KEY);
