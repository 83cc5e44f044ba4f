CREATE TABLE IF NOT EXISTS files (
	id TEXT PRIMARY KEY, tenant TEXT NOT NULL, purpose TEXT NOT NULL, name TEXT NOT NULL,
	bytes BIGINT NOT NULL, created BIGINT NOT NULL, expires BIGINT NOT NULL);
CREATE INDEX IF NOT EXISTS files_of_tenants ON files (tenant, created, id);
CREATE TABLE IF NOT EXISTS parts (
	file TEXT NOT NULL, number BIGINT NOT NULL, blob TEXT NOT NULL, bytes BIGINT NOT NULL, PRIMARY KEY (file, number));
CREATE INDEX IF NOT EXISTS parts_by_blob ON parts (blob);
CREATE TABLE IF NOT EXISTS batches (
	id TEXT PRIMARY KEY, tenant TEXT NOT NULL, endpoint TEXT NOT NULL, model TEXT NOT NULL,
	input TEXT NOT NULL, output TEXT NOT NULL, error_file TEXT NOT NULL, span TEXT NOT NULL, status TEXT NOT NULL,
	created BIGINT NOT NULL, in_progress BIGINT NOT NULL, expires BIGINT NOT NULL, finalizing BIGINT NOT NULL, completed BIGINT NOT NULL,
	failed BIGINT NOT NULL, expired BIGINT NOT NULL, cancelling BIGINT NOT NULL, cancelled BIGINT NOT NULL,
	total BIGINT NOT NULL, done BIGINT NOT NULL, errors BIGINT NOT NULL,
	metadata TEXT NOT NULL, problems TEXT NOT NULL, output_expires BIGINT NOT NULL,
	open_chunks BIGINT NOT NULL, epoch BIGINT NOT NULL, lease BIGINT NOT NULL);
CREATE INDEX IF NOT EXISTS batches_of_tenants ON batches (tenant, created, id);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status);
CREATE INDEX IF NOT EXISTS batches_of_files ON batches (input);
CREATE TABLE IF NOT EXISTS chunks (
	batch TEXT NOT NULL, number BIGINT NOT NULL, start BIGINT NOT NULL, bytes BIGINT NOT NULL, first BIGINT NOT NULL, lines BIGINT NOT NULL,
	state BIGINT NOT NULL, epoch BIGINT NOT NULL, lease BIGINT NOT NULL,
	output TEXT NOT NULL, output_bytes BIGINT NOT NULL, error_blob TEXT NOT NULL, error_bytes BIGINT NOT NULL,
	PRIMARY KEY (batch, number));
CREATE INDEX IF NOT EXISTS chunks_by_state ON chunks (batch, state, number);
CREATE INDEX IF NOT EXISTS chunks_by_output ON chunks (output);
CREATE INDEX IF NOT EXISTS chunks_by_error_blob ON chunks (error_blob);
CREATE TABLE IF NOT EXISTS results (
	batch TEXT NOT NULL, line BIGINT NOT NULL, chunk BIGINT NOT NULL, ok BIGINT NOT NULL, content TEXT NOT NULL,
	PRIMARY KEY (batch, line));
