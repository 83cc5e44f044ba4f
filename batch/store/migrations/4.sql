ALTER TABLE chunks RENAME COLUMN lease TO renewals;
ALTER TABLE batches RENAME COLUMN lease TO renewals;
UPDATE batches SET renewals = 0;
