package batch

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"io"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// Errors that the API turns into statuses. Their texts are never shown alone.
var (
	ErrNotFound = errors.New("not found")
	ErrInUse    = errors.New("in use by a batch that has not ended")
	ErrEnded    = errors.New("has ended")
)

// Status is where a batch is in its life, in OpenAI's words.
type Status string

// The statuses of batches.
const (
	Validating Status = "validating"
	Failed     Status = "failed" // its input file is invalid
	InProgress Status = "in_progress"
	Finalizing Status = "finalizing" // its window has ended: lines that did not run become errors
	Completed  Status = "completed"
	Expired    Status = "expired"
	Cancelling Status = "cancelling"
	Cancelled  Status = "cancelled"
)

// Statuses lists all statuses.
func Statuses() []Status {
	return []Status{Validating, Failed, InProgress, Finalizing, Completed, Expired, Cancelling, Cancelled}
}

// Ended reports whether nothing will change any more.
func (s Status) Ended() bool {
	return s == Failed || s == Completed || s == Expired || s == Cancelled
}

// Closes returns the error code of the lines that have not run, if the batch runs no more lines; otherwise "".
func (s Status) Closes() string {
	switch s {
	case Cancelling, Cancelled:
		return CodeCancelled
	case Finalizing, Expired:
		return CodeExpired
	}
	return ""
}

// The purposes of files. Clients upload files for batches; the others are written by batches.
const (
	PurposeInput  = "batch"
	PurposeOutput = "batch_output"
)

// File is a file of a tenant. Times are Unix milliseconds; 0 means never.
type File struct {
	ID, Tenant, Purpose, Name string
	Bytes, Created, Expires   int64
	Lines                     int64 // of an uploaded file, blank ones too
}

// Part is a piece of a file's content. A file is the concatenation of its parts.
type Part struct {
	Blob  string // key of the blob store
	Bytes int64
}

// Batch is one batch of a tenant.
type Batch struct {
	ID, Tenant, Endpoint, Model      string
	InputFile, OutputFile, ErrorFile string // ids; output and error files have none until they exist
	Window                           string // completion window as the client wrote it
	Status                           Status
	Times                            Times
	Counts                           Counts
	Metadata                         map[string]string // nil: none
	Problems                         []Problem         // why it failed
	OutputExpires                    int64             // seconds after which output and error files expire; 0: never
}

// Times are Unix milliseconds; 0 means that it has not happened.
type Times struct {
	Created, InProgress, Expires, Finalizing, Completed, Failed, Expired, Cancelling, Cancelled int64
}

// Counts are lines. Those that did not run, because the batch was cancelled or has expired, are in Total only.
type Counts struct{ Total, Completed, Failed int64 }

// Problem is one reason why an input file is invalid.
type Problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Param   string `json:"param,omitempty"`
	Line    int64  `json:"line,omitempty"` // from 1; 0: the file as a whole
}

// NewID returns a new id with the prefix. It has 120 random bits, so that ids cannot be guessed.
func NewID(prefix string) string {
	var random [15]byte
	_, _ = rand.Read(random[:]) // never fails
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(random[:]))
}

// Blobs is where the contents of files are. batch/blob has one in a directory, and one in a bucket.
type Blobs interface {
	Create(ctx context.Context) (BlobWriter, error)
	// Open reads from an offset to the end. The error is ErrNotFound if there is no such blob.
	Open(ctx context.Context, key string, offset int64) (io.ReadCloser, error)
	Delete(ctx context.Context, key string) error
}

// BlobWriter writes a blob, which exists, as a whole, once Commit has returned. Abort may follow Commit, and then does nothing.
type BlobWriter interface {
	io.Writer
	Commit() (Part, error)
	Abort()
}

// Endpoints lists the paths that requests may be for: the generate calls that Tandem's picker reads.
func Endpoints() (paths []string) {
	for _, api := range pd.GenerateAPIs() {
		paths = append(paths, api.Path())
	}
	return paths
}
