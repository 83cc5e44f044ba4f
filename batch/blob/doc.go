// Package blob keeps the contents of files in a directory.
//
// Bytes enter through a [Writer], and exist as a blob under a key once Commit has returned: whatever ends the process or the
// machine before leaves no blob, and whatever ends it after leaves all of it. Blobs are read from any offset, and never change.
//
// The directory belongs to one process. The package knows no files of tenants: batch/store knows which blobs they are made of.
package blob
