// Package s3 starts a server of S3's protocol for tests: gofakes3, which .ci/fetch builds. [Start] returns it, and it makes buckets, whose
// addresses are those of the batch server's --bucket.
//
// Only tests import the package.
package s3
