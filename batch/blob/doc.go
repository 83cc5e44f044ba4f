// Package blob keeps the contents of files, in a directory ([Dir]) or in a bucket of an S3-compatible store ([Bucket]).
//
// Bytes enter through a writer, and exist as a blob under a key once Commit has returned: whatever ends the process or the
// machine before leaves no blob, and whatever ends it after leaves all of it. Blobs are read from any offset, and never change.
//
// A directory belongs to one process, and a bucket to all that share a database; both name the database, so that another one can be refused.
// The package knows no files of tenants: batch/store knows which blobs they are made of.
package blob
